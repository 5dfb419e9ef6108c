// Package link holds the one symbol through which a cell reaches runtime.addmoduledata of the worker's shared library. Package
// stub jumps to it; nothing else uses it. Only shared libraries that are linked with -checklinkname=0 may hold this package.
package link

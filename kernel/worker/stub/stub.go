//go:build linux && (amd64 || arm64)

// Package stub is linked into every cell, and into nothing else.
//
// A cell is a Go plugin (-buildmode=plugin) that is linked against the worker's shared libraries (-linkshared) in place of
// carrying its own copy of all it imports. Go's linker does not foresee the pair: a plugin that does not hold the runtime gets
// an empty runtime.addmoduledata, which its initialiser then runs into. So the stub brings a body for that symbol, which the
// linker's version script keeps local to the cell, and which jumps to the real one by way of package link. The blank imports
// make the linker record the fingerprints of packages that it would otherwise load unnamed, which the runtime compares.
package stub

import (
	_ "runtime"
	_ "runtime/cgo"
)

// Keep is never called. A cell hands it to worker.Register, so that the linker sees package link's symbol as reachable.
func Keep()

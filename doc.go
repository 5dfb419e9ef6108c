// Package soarbook is the root of a Jupyter notebook kernel and a set of packages with which a language-model search
// agent is stepped, inspected and trained. README.md says where to start.
package soarbook

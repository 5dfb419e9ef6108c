//go:build !linux

package gonbpipe

// ioctlQueued asks for the number of bytes that wait in a pipe: FIONREAD of the BSDs and of macOS, which x/sys/unix does not name.
const ioctlQueued = 0x4004667f

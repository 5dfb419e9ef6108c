package gonbpipe

import "golang.org/x/sys/unix"

// ioctlQueued asks for the number of bytes that wait in a pipe (FIONREAD).
const ioctlQueued = unix.TIOCINQ

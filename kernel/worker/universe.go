package worker

// Embedded predeclared types: a cell that embeds error gets a field whose name other cells can see.
type (
	Ⱟerror      = error
	Ⱟbool       = bool
	Ⱟstring     = string
	Ⱟint        = int
	Ⱟint8       = int8
	Ⱟint16      = int16
	Ⱟint32      = int32
	Ⱟint64      = int64
	Ⱟuint       = uint
	Ⱟuint8      = uint8
	Ⱟuint16     = uint16
	Ⱟuint32     = uint32
	Ⱟuint64     = uint64
	Ⱟuintptr    = uintptr
	Ⱟfloat32    = float32
	Ⱟfloat64    = float64
	Ⱟcomplex64  = complex64
	Ⱟcomplex128 = complex128
	Ⱟbyte       = byte
	Ⱟrune       = rune
	Ⱟany        = any
)

#include "textflag.h"

TEXT ·addModule(SB),NOSPLIT|NOFRAME,$0
	B runtime·addmoduledata(SB)

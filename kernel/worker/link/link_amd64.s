#include "textflag.h"

TEXT ·addModule(SB),NOSPLIT|NOFRAME,$0
	JMP runtime·addmoduledata(SB)

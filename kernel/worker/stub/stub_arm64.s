#include "textflag.h"

TEXT runtime·addmoduledata(SB),NOSPLIT|NOFRAME,$0
	B github·com∕soarbook∕soarbook∕kernel∕worker∕link·addModule(SB)

TEXT ·Keep(SB),NOSPLIT|NOFRAME,$0
	B github·com∕soarbook∕soarbook∕kernel∕worker∕link·addModule(SB)

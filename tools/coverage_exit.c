/* Wrappers of _exit and abort for C tests in coverage builds (`make coverage`): they write a
 * child's counts first, which would be lost otherwise. */
#include <gcov.h>
#include <stdlib.h>
#include <unistd.h>

_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);

void
__wrap__exit(int status)
{
    __gcov_dump();
    __real__exit(status);
}

_Noreturn void __real_abort(void);
_Noreturn void __wrap_abort(void);

void
__wrap_abort(void)
{
    __gcov_dump();
    __real_abort();
}

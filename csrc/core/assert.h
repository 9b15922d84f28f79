/* Assertions about the library's own state, only in test builds (DD_ASSERTS). A failing assertion
 * prints itself and ends the process. Must not be used for a peer's bytes or a user's arguments. */
#ifndef DD_CORE_ASSERT_H
#define DD_CORE_ASSERT_H

#ifdef DD_ASSERTS

#include "core/lock.h"

/* prints the claim and ends the process; defined in tests/faults/lock.c */
_Noreturn void dd_assert_fail(const char *claim, const char *file, int line);
bool dd_lock_holds(dd_lock_kind kind); /* true if this thread holds a lock of this kind */

#define dd_assert(claim) ((claim) ? (void)0 : dd_assert_fail(#claim, __FILE__, __LINE__))
/* Assert that this thread holds a lock of this kind. For functions whose names end in _locked. */
#define dd_assert_holds(kind) dd_assert(dd_lock_holds(DD_LOCK_##kind))

#else
#define dd_assert(claim) ((void)0)
#define dd_assert_holds(kind) ((void)0)
#endif

#endif

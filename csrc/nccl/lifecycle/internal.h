/* Opening and closing a group, and the watchdog's thread. */
#ifndef DD_NCCL_LIFECYCLE_INTERNAL_H
#define DD_NCCL_LIFECYCLE_INTERNAL_H

#include "nccl/call/internal.h"

/* ---- group_checks.c */

/* Fail the group if a work has missed its deadline. */
void nccl_group_check_deadlines(dd_nccl_group *group, int64_t now_ns);
/* Fail the group if NCCL reports an error of one of its communicators. */
void nccl_group_check_comms(dd_nccl_group *group);

/* ---- watchdog.c */

dd_status nccl_watchdog_add(dd_nccl_watchdog *watchdog, dd_nccl_group *group, dd_error *err);

#endif

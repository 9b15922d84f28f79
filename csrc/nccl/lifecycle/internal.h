/* The beginning and the end of a group, and the watchdog's thread between them. */
#ifndef DD_NCCL_LIFECYCLE_INTERNAL_H
#define DD_NCCL_LIFECYCLE_INTERNAL_H

#include "nccl/call/internal.h"

/* ---- verdict.c */

/* The works whose time is up: fails the group. */
void nccl_group_check_deadlines(dd_nccl_group *group, int64_t now_ns);
/* The communicators: fails the group. */
void nccl_group_check_comms(dd_nccl_group *group);

/* ---- watchdog.c */

dd_status nccl_watchdog_add(dd_nccl_watchdog *watchdog, dd_nccl_group *group, dd_error *err);

#endif

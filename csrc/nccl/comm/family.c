/* Relatives: communicators made from one another, and which of them an abort also ends.
 *
 * An abort also ends all communicators split from the aborted one, recursively: ranks that do not
 * answer on the parent do not answer on a child, and NCCL lets those calls hang. A communicator
 * that has ended keeps its place until its record is freed; then its children become children of
 * its parent. Shrunk and grown communicators are not children: they replace their parent.
 *
 * With splitShare (or shrinkShare), NCCL has one abort flag for all parents and children that
 * share. If one is aborted, the kernels of all end with garbage, so all are aborted, parents
 * included. */
#include "nccl/comm/internal.h"

#include "core/lock.h"

static dd_lock family_lock = DD_LOCK_INITIALIZER(DD_LOCK_NCCL_FAMILY);
static dd_list members = {&members, &members}; /* guarded by family_lock; has all relatives */

void
dd_nccl_family_add(dd_nccl_comm *parent, dd_nccl_comm *child, bool is_split, bool shares)
{
    dd_lock_take(&family_lock);
    dd_nccl_comm *both[] = {parent, child};
    for (int i = 0; i < 2; i++) {
        if (dd_list_is_empty(&both[i]->family.link)) {
            dd_list_push_back(&members, &both[i]->family.link);
        }
    }
    child->family.parent = is_split ? parent : NULL;
    if (shares) {
        child->family.flag = parent->family.flag;
    }
    dd_lock_release(&family_lock);
}

void
dd_nccl_family_remove(dd_nccl_comm *comm)
{
    dd_lock_take(&family_lock);
    if (!dd_list_is_empty(&comm->family.link)) {
        dd_list_remove(&comm->family.link);
        for (dd_list *node = members.next; node != &members; node = node->next) {
            dd_nccl_comm *other = DD_CONTAINER_OF(node, dd_nccl_comm, family.link);
            if (other->family.parent == comm) {
                other->family.parent = comm->family.parent;
            }
        }
    }
    dd_lock_release(&family_lock);
}

void
dd_nccl_family_mark_abort(dd_nccl_comm *comm, dd_nccl_reach reach)
{
    dd_lock_take(&family_lock);
    if (comm->family.reach < reach) {
        comm->family.reach = reach;
    }
    dd_lock_release(&family_lock);
}

/* Return why an abort must also end this communicator; NULL if none must. */
static const char *
why_reached_locked(const dd_nccl_comm *comm)
{
    if (comm->family.parent != NULL && comm->family.parent->family.reach == DD_NCCL_REACH_ALL) {
        return "the communicator that it was split from";
    }
    for (const dd_list *node = members.next; node != &members; node = node->next) {
        const dd_nccl_comm *other = DD_CONTAINER_OF(node, const dd_nccl_comm, family.link);
        if (other->family.flag == comm->family.flag && other->family.reach != DD_NCCL_REACH_NONE) {
            return "a communicator that shares its resources";
        }
    }
    return NULL;
}

/* Acquire a communicator. Return false if its last reference has been released. */
static bool
try_acquire(dd_nccl_comm *comm)
{
    unsigned refs = atomic_load(&comm->refs);
    while (refs > 0 && !atomic_compare_exchange_weak(&comm->refs, &refs, refs + 1)) {
    }
    return refs > 0;
}

dd_nccl_comm *
dd_nccl_family_next(dd_nccl_comm_owner *owner, const char **why)
{
    dd_nccl_comm *found = NULL;
    dd_lock_take(&family_lock);
    for (dd_list *node = members.next; node != &members && found == NULL;) {
        dd_nccl_comm *comm = DD_CONTAINER_OF(node, dd_nccl_comm, family.link);
        node = node->next;
        if (comm->family.reach != DD_NCCL_REACH_NONE || (*why = why_reached_locked(comm)) == NULL) {
            continue;
        }
        comm->family.reach = DD_NCCL_REACH_ALL;
        if (try_acquire(comm)) {
            found = comm;
        } else {
            node = members.next; /* restart: the children of an ending comm may be earlier */
        }
    }
    *owner = (dd_nccl_comm_owner){0};
    if (found != NULL && found->family.owner.abort != NULL &&
        found->family.owner.try_acquire(found->family.owner.ctx)) {
        *owner = found->family.owner;
    }
    dd_lock_release(&family_lock);
    return found;
}

void
dd_nccl_comm_set_owner(dd_nccl_comm *comm, const dd_nccl_comm_owner *owner)
{
    dd_lock_take(&family_lock);
    comm->family.owner = owner != NULL ? *owner : (dd_nccl_comm_owner){0};
    dd_lock_release(&family_lock);
}

/* The sleep of the connector's thread: the events and times that end it. */
#include "transport/connect_internal.h"

#include "core/system.h"

void
connect_wake(const dd_connector *self)
{
    const uint64_t one = 1;
    /* The write fails only if the counter is full: then the thread is awake or waking. */
    (void)!dd_sys_write(self->wake_fd, &one, sizeof one);
}

/* Index 0 of pollfds is for wake_fd, so that the value 0 in `polled` means "not polled". */
void
connect_begin_round(dd_connector *self)
{
    self->pollfds[0] = (struct pollfd){.fd = self->wake_fd, .events = POLLIN};
    self->npolled = 1;
    self->sleep_until_ns = DD_NEVER_NS;
}

void
connect_poll(dd_connector *self, int fd, short events, size_t *polled)
{
    *polled = self->npolled;
    self->pollfds[self->npolled++] = (struct pollfd){.fd = fd, .events = events};
}

void
connect_sleep_until(dd_connector *self, int64_t until_ns)
{
    self->sleep_until_ns = until_ns < self->sleep_until_ns ? until_ns : self->sleep_until_ns;
}

bool
connect_is_ready(const dd_connector *self, size_t *polled)
{
    bool is_ready = *polled != 0 && self->pollfds[*polled].revents != 0;
    *polled = 0;
    return is_ready;
}

void
connect_sleep(dd_connector *self)
{
    int64_t left_ns = dd_deadline_left_ns(self->sleep_until_ns);
    struct timespec left = {left_ns / DD_NS_PER_S, left_ns % DD_NS_PER_S};
    bool is_forever = self->sleep_until_ns == DD_NEVER_NS;
    if (dd_sys_ppoll(self->pollfds, self->npolled, is_forever ? NULL : &left, NULL) > 0 &&
        self->pollfds[0].revents != 0) {
        uint64_t nwakes;
        (void)!dd_sys_read(self->wake_fd, &nwakes, sizeof nwakes);
    }
}

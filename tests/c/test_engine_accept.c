/* A process that dies in the middle of the hand-shake that makes a link, as seen by the one that has let it in. */
#include "check.h"
#include "net/sock.h"
#include "test_engine_rig.h"
#include "transport/connect_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct victim {
    dd_engine *engine;
    dd_card own;  /* of the engine */
    dd_card card; /* of the one that dies; nobody is there */
    dd_peer *peer;
    int fd;
} victim;

static bool
open_victim(victim *self)
{
    dd_connect_options options = rig_options(true, 1);
    dd_blob bytes = {0};
    *self = (victim){.fd = -1};
    bool is_ok = CHECK_OK(dd_engine_open(&options, &self->engine, check_err())) &&
                 CHECK_OK(dd_engine_card(self->engine, NULL, &bytes, check_err())) &&
                 CHECK_OK(dd_card_decode(dd_blob_view(&bytes), &self->own, check_err())) &&
                 CHECK_OK(dd_card_init(&self->card, check_err()));
    snprintf(self->card.unix_name, sizeof self->card.unix_name, "dldist-nobody-%lld", self->card.pid);
    is_ok = is_ok && CHECK_OK(dd_card_encode(&self->card, &bytes, check_err())) &&
            CHECK_OK(dd_engine_peer(self->engine, dd_blob_view(&bytes), &self->peer, check_err()));
    dd_blob_fini(&bytes);
    return is_ok;
}

/* Up to the verdict, which says that it is welcome. */
static bool
begin_hand_shake(victim *self)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_addr addr = dd_addr_unix_abstract(self->own.unix_name);
    connect_hello hello = {.from = self->card.uid, .to = self->own.uid};
    uint8_t answer[CONNECT_ANSWER_BYTES];
    uint8_t verdict = 0;
    return CHECK_OK(dd_sock_connect(&addr, &self->fd, &wait, check_err())) &&
           CHECK_OK(connect_hello_write(&hello, check_err())) &&
           CHECK_OK(connect_send(self->fd, hello.bytes, CONNECT_HELLO_BYTES, &wait, check_err())) &&
           CHECK_OK(connect_recv(self->fd, answer, sizeof answer, &wait, check_err())) &&
           CHECK_OK(connect_recv(self->fd, &verdict, 1, &wait, check_err())) &&
           CHECK_INT(verdict, CONNECT_OK);
}

static bool
is_lost_soon(const victim *self)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    bool is_lost = false;
    while (!is_lost && !dd_wait_is_over(&wait)) {
        dd_engine_lock(self->engine);
        is_lost = dd_peer_error_locked(self->peer) != NULL;
        dd_engine_unlock(self->engine);
        CHECK_OK(dd_wait_sleep(&wait, DD_NS_PER_MS, check_err()));
    }
    return is_lost;
}

static void
die(victim *self, bool is_wanted_before)
{
    REQUIRE(open_victim(self) && begin_hand_shake(self));
    for (int i = 0; i < 2; i++) {
        if (is_wanted_before == (i == 0)) {
            dd_engine_lock(self->engine);
            dd_peer_connect_locked(self->peer);
            dd_engine_unlock(self->engine);
        } else {
            dd_sock_close(self->fd);
        }
    }
    CHECK(is_lost_soon(self));
    dd_peer_release(self->peer);
    dd_engine_release(self->engine);
}

TEST(who_waits_for_a_dial_that_breaks_off_hears_of_it)
{
    victim self;
    die(&self, true);
    die(&self, false);
}

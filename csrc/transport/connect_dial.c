/* The dialer's side of a hand-shake. */
#include "transport/connect_internal.h"

#include "core/fork.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"
#include "net/sock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The next address gets its try when those before it have not said anything for so long. */
#define STAGGER_NS (100 * DD_NS_PER_MS)
/* Whoever takes a connection and says nothing is not waited for longer than that while there are other
 * addresses. */
#define SILENCE_NS (3 * DD_NS_PER_S)
/* A listener that is flooded, or short of descriptors, may close a connection before it has heard the hello; the next one may be
 * heard. One that stays short says so itself meanwhile. A connection that closes for another reason will do so every time. */
#define TURNED_AWAY_TRIES 50
#define TURNED_AWAY_PAUSE_NS (20 * DD_NS_PER_MS)
/* After BUSY. */
#define BUSY_FIRST_NS (2 * DD_NS_PER_MS)
#define BUSY_LAST_NS (100 * DD_NS_PER_MS)

/* ---- what is said over a connection */

static dd_status
explain(const connect_answer *answer, connect_verdict verdict, dd_error *err)
{
    switch (verdict) {
    case CONNECT_OTHER_PROCESS:
        return dd_error_set(err, DD_NETWORK, "another process is there");
    case CONNECT_OTHER_VERSION:
        return dd_error_set(
            err, DD_PROTOCOL,
            "it speaks version %u of the link protocol, and this process version %u: all ranks need "
            "the same version of dldist",
            answer->version, CONNECT_VERSION);
    case CONNECT_SECRET_WANTED:
        return dd_error_set(err, DD_AUTH, "it wants proof of a secret, and this process has none");
    case CONNECT_NO_SECRET:
        return dd_error_set(err, DD_AUTH, "it has no secret, and this process wants proof of one");
    case CONNECT_DENIED:
        return dd_error_set(err, DD_AUTH, "it has another secret");
    case CONNECT_NO_SUCH_LANE:
        return dd_error_set(err, DD_PROTOCOL, "it has fewer lanes");
    case CONNECT_GO_ON:
    case CONNECT_OK:
    case CONNECT_BUSY:
    case CONNECT_VERDICT_COUNT:
        break;
    }
    return dd_error_set(err, DD_PROTOCOL, "it gave an answer that makes no sense (%d)", (int)verdict);
}

static dd_status
exchange_proofs(const connect_job *job, int fd, const connect_hello *hello, const connect_answer *answer,
                const dd_wait *wait, dd_error *err)
{
    dd_bytes secret = dd_blob_view(&job->connector->secret);
    if (!connect_check_proof(secret, CONNECT_LISTENER, hello, answer->nonce, answer->proof)) {
        return dd_error_set(err, DD_AUTH, "it has another secret");
    }
    uint8_t proof[DD_SHA256_BYTES];
    connect_prove(secret, CONNECT_DIALER, hello, answer->nonce, proof);
    return connect_send(fd, proof, sizeof proof, wait, err);
}

/* On success *is_busy tells whether the peer is busy with another link to us; on failure *is_turned_away,
 * whether it closed the connection before any answer. */
static dd_status
greet(const connect_job *job, int fd, bool *is_busy, bool *is_turned_away, const dd_wait *wait, dd_error *err)
{
    bool has_secret = job->connector->secret.len > 0;
    connect_hello hello = {
        .from = job->connector->uid, .to = job->peer, .lane = (uint32_t)job->lane, .has_secret = has_secret};
    dd_status status = connect_hello_write(&hello, err);
    if (status == DD_OK) {
        status = connect_send(fd, hello.bytes, CONNECT_HELLO_BYTES, wait, err);
    }
    uint8_t bytes[CONNECT_ANSWER_BYTES];
    if (status == DD_OK) {
        status = connect_recv(fd, bytes, sizeof bytes, wait, err);
    }
    *is_turned_away = status == DD_NETWORK;
    if (status != DD_OK) {
        return status;
    }
    connect_answer answer;
    if (!connect_answer_read(bytes, &answer)) {
        return dd_error_set(err, DD_PROTOCOL, "what is there is not of our kind");
    }
    if (answer.verdict != CONNECT_GO_ON || answer.version != CONNECT_VERSION) {
        return explain(&answer, answer.version != CONNECT_VERSION ? CONNECT_OTHER_VERSION : answer.verdict,
                       err);
    }
    if (has_secret) {
        status = exchange_proofs(job, fd, &hello, &answer, wait, err);
    }
    uint8_t verdict = 0;
    if (status == DD_OK) {
        status = connect_recv(fd, &verdict, 1, wait, err);
    }
    if (status == DD_OK && verdict != CONNECT_OK && verdict != CONNECT_BUSY) {
        status = explain(&answer, (connect_verdict)verdict, err);
    }
    if (status == DD_OK) {
        *is_busy = verdict == CONNECT_BUSY;
    }
    return status;
}

/* ---- the Unix socket */

static dd_status
connect_unix(const dd_addr *addr, int *fd, const dd_wait *wait, dd_error *err)
{
    for (;;) {
        dd_error why = {0};
        dd_status status = dd_sock_connect(addr, fd, wait, &why);
        /* Its queue of connections is full. */
        if (status != DD_NETWORK || why.sys_errno != EAGAIN || dd_wait_is_over(wait)) {
            return status == DD_OK ? DD_OK : dd_error_copy(err, &why);
        }
        status = dd_wait_sleep(wait, BUSY_FIRST_NS, err);
        if (status != DD_OK) {
            return status;
        }
    }
}

/* With link still NULL on success the peer is busy. */
static dd_status
dial_unix(const connect_job *job, dd_link **link, const dd_wait *wait, dd_error *err)
{
    dd_addr addr = dd_addr_unix_abstract(job->card.unix_name);
    int fd = -1;
    dd_status status = connect_unix(&addr, &fd, wait, err);
    if (status != DD_OK) {
        return status;
    }
    bool is_busy = false;
    bool is_turned_away = false;
    status = dd_sock_is_same_user(fd) ? greet(job, fd, &is_busy, &is_turned_away, wait, err)
                                      : dd_error_set(err, DD_NETWORK, "it is of another user");
    if (status == DD_OK && !is_busy) {
        status = dd_link_take_shm(fd, link, wait, err);
    }
    if (status != DD_OK || is_busy) {
        dd_sock_close(fd);
    }
    if (status != DD_OK && status != DD_INTERRUPTED) {
        char text[DD_ADDR_TEXT_MAX];
        dd_error_prepend(err, "%s", dd_addr_print(&addr, text));
    }
    return status;
}

/* ---- TCP: the addresses race each other */

typedef struct racer {
    const dd_addr *addr;
    int fd;
    bool is_started;
    bool is_connecting;
} racer;

typedef struct race {
    const connect_job *job;
    racer racers[DD_ADDR_LIST_MAX];
    size_t count;
    size_t nstarted;
    size_t nconnecting;
    int64_t next_start_ns;
    bool was_silent; /* somebody was given up because there were others */
    bool was_turned_away;
    dd_error why; /* of all that have failed so far; code DD_OK: of none */
} race;

static void
end_racer(race *self, racer *one)
{
    if (one->is_connecting) {
        one->is_connecting = false;
        self->nconnecting--;
    }
    dd_sock_close(one->fd);
    one->fd = -1;
}

/* What a peer that is there has said is worth more than silence. It is this process's own failure only if
 * all addresses say so. */
static void
note_failure(race *self, racer *one, const dd_error *why)
{
    end_racer(self, one);
    char text[DD_ADDR_TEXT_MAX];
    dd_error all = *why;
    dd_addr_print(one->addr, text);
    if (self->why.code == DD_OK) {
        snprintf(all.message, sizeof all.message, "%.200s: %.300s", text, why->message);
    } else {
        snprintf(all.message, sizeof all.message, "%.600s; %.100s: %.250s", self->why.message, text,
                 why->message);
        if (self->why.code != DD_NETWORK && self->why.code != DD_NETWORK_TIMED_OUT) {
            all.code = self->why.code;
        }
        if (!dd_error_is_own(&self->why)) {
            all.sys_errno = self->why.sys_errno;
        }
    }
    self->why = all;
}

static void
start_racer(race *self, racer *one)
{
    dd_error why = {0};
    one->is_started = true;
    self->nstarted++;
    self->next_start_ns = dd_deadline_after(STAGGER_NS);
    one->fd = dd_fork_own(
        dd_sys_socket(one->addr->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    dd_status status = DD_OK;
    if (one->fd < 0) {
        status = dd_error_set_errno(&why, DD_NETWORK, errno, "cannot open a socket");
    } else {
        status = connect_set_congestion(self->job->connector, one->fd, &why);
    }
    if (status == DD_OK &&
        dd_sys_connect(one->fd, (const struct sockaddr *)&one->addr->storage, one->addr->len) != 0 &&
        errno != EINPROGRESS && errno != EINTR) {
        status = dd_error_set_errno(&why, DD_NETWORK, errno, "connection failed");
    }
    if (status != DD_OK) {
        note_failure(self, one, &why);
        return;
    }
    one->is_connecting = true;
    self->nconnecting++;
}

static racer *
next_unstarted(race *self)
{
    for (size_t i = 0; i < self->count; i++) {
        if (!self->racers[i].is_started) {
            return &self->racers[i];
        }
    }
    return NULL;
}

static bool
has_arrived(race *self, racer *one)
{
    int reason = 0;
    socklen_t reason_len = sizeof reason;
    if (dd_sys_getsockopt(one->fd, SOL_SOCKET, SO_ERROR, &reason, &reason_len) != 0) {
        reason = errno;
    }
    if (reason != 0) {
        dd_error why = {0};
        (void)dd_error_set_errno(&why, DD_NETWORK, reason, "connection failed");
        note_failure(self, one, &why);
        return false;
    }
    one->is_connecting = false;
    self->nconnecting--;
    return true;
}

/* The first that has connected, NULL when for now or for good there is none. */
static racer *
poll_race(race *self, const dd_wait *wait)
{
    struct pollfd pollfds[DD_ADDR_LIST_MAX];
    racer *who[DD_ADDR_LIST_MAX];
    nfds_t count = 0;
    for (size_t i = 0; i < self->count; i++) {
        if (self->racers[i].is_connecting) {
            who[count] = &self->racers[i];
            pollfds[count++] = (struct pollfd){.fd = self->racers[i].fd, .events = POLLOUT};
        }
    }
    int64_t nap_ns = dd_wait_slice_ns(wait);
    if (self->nstarted < self->count && dd_deadline_left_ns(self->next_start_ns) < nap_ns) {
        nap_ns = dd_deadline_left_ns(self->next_start_ns);
    }
    struct timespec nap = {nap_ns / DD_NS_PER_S, nap_ns % DD_NS_PER_S};
    int nready = dd_sys_ppoll(pollfds, count, &nap, NULL);
    for (nfds_t i = 0; i < count && nready > 0; i++) {
        if (pollfds[i].revents != 0 && has_arrived(self, who[i])) {
            return who[i];
        }
    }
    return NULL;
}

/* The next that is connected, with the others still under way; NULL in *one: all have failed. */
static dd_status
run_race(race *self, racer **one, const dd_wait *wait, dd_error *err)
{
    for (;;) {
        racer *fresh = next_unstarted(self);
        while (fresh != NULL && (self->nconnecting == 0 || dd_deadline_left_ns(self->next_start_ns) == 0)) {
            start_racer(self, fresh);
            fresh = next_unstarted(self);
        }
        *one = NULL;
        if (self->nconnecting == 0) {
            return DD_OK;
        }
        *one = poll_race(self, wait);
        if (*one != NULL) {
            return DD_OK;
        }
        dd_status status = dd_wait_check(wait, err);
        if (status == DD_OK && dd_wait_is_over(wait)) {
            for (size_t i = 0; i < self->count; i++) {
                dd_error why = {0};
                if (self->racers[i].is_connecting) {
                    (void)dd_error_set(&why, DD_NETWORK_TIMED_OUT, "no answer for %.3f s",
                                       dd_wait_elapsed_s(wait));
                    note_failure(self, &self->racers[i], &why);
                }
            }
            status = dd_error_copy(err, &self->why);
        }
        if (status != DD_OK) {
            return status;
        }
    }
}

/* Takes the racer's socket on success, unless the peer is busy. */
static dd_status
greet_racer(race *self, racer *one, dd_link **link, const dd_wait *wait, dd_error *err)
{
    bool is_alone = self->nconnecting == 0 && self->nstarted == self->count;
    dd_wait patience = is_alone ? *wait : dd_wait_at_most(wait, SILENCE_NS);
    bool is_busy = false;
    bool is_turned_away = false;
    dd_status status = greet(self->job, one->fd, &is_busy, &is_turned_away, &patience, err);
    self->was_turned_away = self->was_turned_away || is_turned_away;
    if (status == DD_NETWORK_TIMED_OUT && !dd_wait_is_over(wait)) {
        self->was_silent = true;
    }
    if (status == DD_OK && !is_busy) {
        status = dd_link_open_tcp(one->fd, link, err);
        one->fd = status == DD_OK ? -1 : one->fd;
    }
    return status;
}

/* One round over all addresses. With link still NULL on success the peer is busy. */
static dd_status
race_once(race *self, dd_link **link, const dd_wait *wait, dd_error *err)
{
    const dd_addr_list *addrs = &self->job->card.addrs;
    self->count = addrs->count;
    self->nstarted = 0;
    self->nconnecting = 0;
    self->was_silent = false;
    self->was_turned_away = false;
    self->why = (dd_error){0};
    for (size_t i = 0; i < addrs->count; i++) {
        self->racers[i] = (racer){.addr = &addrs->items[i], .fd = -1};
    }
    dd_status status = DD_OK;
    for (;;) {
        racer *one = NULL;
        status = run_race(self, &one, wait, err);
        if (status != DD_OK || one == NULL) {
            status = status != DD_OK ? status : dd_error_copy(err, &self->why);
            break;
        }
        dd_error why = {0};
        status = greet_racer(self, one, link, wait, &why);
        if (status == DD_OK || status == DD_INTERRUPTED || status == DD_OUT_OF_MEMORY) {
            status = status == DD_OK ? DD_OK : dd_error_copy(err, &why);
            break;
        }
        note_failure(self, one, &why);
    }
    for (size_t i = 0; i < self->count; i++) {
        end_racer(self, &self->racers[i]);
    }
    return status;
}

/* A card that names loopback addresses only has been made for ranks of one host. */
static bool
is_out_of_reach(const connect_job *job)
{
    const dd_addr_list *addrs = &job->card.addrs;
    bool is_loopback = !dd_card_is_same_host(&job->card, job->connector->card);
    for (size_t i = 0; i < addrs->count; i++) {
        is_loopback = is_loopback && dd_addr_is_loopback(&addrs->items[i]);
    }
    return is_loopback;
}

static dd_status
dial_tcp(const connect_job *job, dd_link **link, const dd_wait *wait, dd_error *err)
{
    if (job->card.addrs.count == 0) {
        return dd_error_set(err, DD_NETWORK, "it has published no address");
    }
    race *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    self->job = job;
    dd_status status = race_once(self, link, wait, err);
    for (int ntries = 1; status != DD_OK && status != DD_INTERRUPTED && !dd_wait_is_over(wait); ntries++) {
        bool is_again = self->was_turned_away && ntries < TURNED_AWAY_TRIES;
        if (is_again && dd_wait_sleep(wait, TURNED_AWAY_PAUSE_NS, NULL) != DD_OK) {
            status = DD_INTERRUPTED;
            break;
        }
        if (!self->was_silent && !is_again) {
            break;
        }
        status = race_once(self, link, wait, err);
    }
    if (status != DD_OK && status != DD_INTERRUPTED && is_out_of_reach(job)) {
        dd_error_prepend(
            err, "it can be reached on its own host only, since its store is at a loopback address (give "
                 "all ranks the store's address in the network, or set DLDIST_SOCKET_IFNAME there)");
    }
    dd_mem_free(self);
    return status;
}

/* ---- one dial */

static bool
is_shm_possible(const connect_job *job)
{
    return job->lane == 0 && !job->connector->options.is_shm_disabled && job->card.unix_name[0] != '\0' &&
           dd_card_is_same_host(&job->card, job->connector->card);
}

static dd_status
dial_once(const connect_job *job, dd_link **link, const dd_wait *wait, dd_error *err)
{
    if (!is_shm_possible(job)) {
        return dial_tcp(job, link, wait, err);
    }
    dd_error why = {0};
    dd_status status = dial_unix(job, link, wait, &why);
    if (status == DD_OK) {
        return DD_OK;
    }
    bool is_final = status == DD_INTERRUPTED || status == DD_AUTH || dd_wait_is_over(wait);
    if (is_final || job->card.addrs.count == 0) {
        return dd_error_copy(err, &why);
    }
    char who[96];
    DD_LOG(DD_LOG_INFO, "no shared memory with %s, which is on this host; TCP is used: %s",
           dd_card_print(&job->card, who), why.message);
    status = dial_tcp(job, link, wait, err);
    if (status != DD_OK && status != DD_INTERRUPTED) {
        dd_error_prepend(err, "%.300s", why.message);
    }
    return status;
}

/* DD_INTERRUPTED: nobody wants to know any more. */
static dd_status
dial_until_answered(connect_job *job, dd_link **link, dd_error *err)
{
    dd_wait wait = connect_job_wait(job);
    for (int64_t pause_ns = BUSY_FIRST_NS;; pause_ns *= pause_ns < BUSY_LAST_NS ? 2 : 1) {
        dd_status status = dial_once(job, link, &wait, err);
        if (status != DD_OK || *link != NULL) {
            return status;
        }
        if (!connect_sleep_busy(job, pause_ns)) {
            return DD_INTERRUPTED;
        }
        if (dd_wait_is_over(&wait)) {
            return dd_error_set(err, DD_NETWORK_TIMED_OUT,
                                "it has been busy with another link to this process for %.3f s",
                                dd_wait_elapsed_s(&wait));
        }
    }
}

void
connect_dial_run(connect_job *job)
{
    const dd_connect_handler *handler = &job->connector->handler;
    if (!connect_begin_dial(job)) {
        return;
    }
    dd_link *link = NULL;
    dd_error err = {0};
    dd_status status = dial_until_answered(job, &link, &err);
    if (!connect_settle_dial(job)) {
        dd_link_close(link);
        return;
    }
    if (status == DD_OK) {
        handler->on_link(handler->ctx, &job->peer, job->lane, link);
        return;
    }
    char who[96];
    dd_error_prepend(&err, "cannot connect to %s", dd_card_print(&job->card, who));
    dd_error_blame(&err, -1, job->card.host, job->card.pid);
    handler->on_dial_failed(handler->ctx, &job->peer, job->lane, &err);
}

/* The listener's side of a hand-shake. Everything said is a stranger's word until his proof is there, and
 * without a secret for good. */
#include "transport/connect_internal.h"

#include "core/log.h"
#include "net/auth.h"
#include "net/sock.h"

#include <string.h>

static connect_verdict
judge(const connect_job *job, const connect_hello *hello)
{
    const dd_connector *connector = job->connector;
    bool has_secret = connector->secret.len > 0;
    if (hello->version != CONNECT_VERSION) {
        return CONNECT_OTHER_VERSION;
    }
    if (memcmp(&hello->to, &connector->uid, sizeof hello->to) != 0 ||
        memcmp(&hello->from, &connector->uid, sizeof hello->from) == 0) {
        return CONNECT_OTHER_PROCESS;
    }
    if (has_secret != hello->has_secret) {
        return has_secret ? CONNECT_SECRET_WANTED : CONNECT_NO_SECRET;
    }
    if (hello->lane >= (uint32_t)connector->options.nlanes || (job->is_unix && hello->lane != 0)) {
        return CONNECT_NO_SUCH_LANE;
    }
    return CONNECT_GO_ON;
}

static dd_status
refuse(const connect_verdict verdict, dd_error *err)
{
    switch (verdict) {
    case CONNECT_OTHER_VERSION:
        return dd_error_set(err, DD_PROTOCOL, "it speaks another version of the link protocol");
    case CONNECT_OTHER_PROCESS:
        return dd_error_set(err, DD_NETWORK, "it wants another process");
    case CONNECT_SECRET_WANTED:
        return dd_error_set(err, DD_AUTH, "it has no secret");
    case CONNECT_NO_SECRET:
        return dd_error_set(err, DD_AUTH, "it wants a secret, and there is none here");
    case CONNECT_DENIED:
        return dd_error_set(err, DD_AUTH, "its proof that it knows the secret is wrong");
    case CONNECT_NO_SUCH_LANE:
        return dd_error_set(err, DD_PROTOCOL, "it wants a lane that there is not");
    case CONNECT_GO_ON:
    case CONNECT_OK:
    case CONNECT_BUSY:
    case CONNECT_VERDICT_COUNT:
        break;
    }
    return DD_OK;
}

static dd_status
send_verdict(const connect_job *job, connect_verdict verdict, const dd_wait *wait, dd_error *err)
{
    const uint8_t byte = (uint8_t)verdict;
    return connect_send(job->fd, &byte, 1, wait, err);
}

/* Up to the point where the other side is known, as far as it can be. */
static dd_status
identify(const connect_job *job, connect_hello *hello, const dd_wait *wait, dd_error *err)
{
    dd_bytes secret = dd_blob_view(&job->connector->secret);
    memcpy(hello->bytes, job->hello, sizeof hello->bytes);
    if (!connect_hello_read(hello)) {
        return dd_error_set(err, DD_PROTOCOL, "it is not of our kind");
    }
    dd_status status = DD_OK;
    connect_answer answer = {.verdict = judge(job, hello)};
    bool goes_on = answer.verdict == CONNECT_GO_ON;
    if (goes_on && secret.len > 0) {
        status = dd_auth_random(answer.nonce, sizeof answer.nonce, err);
        connect_prove(secret, CONNECT_LISTENER, hello, answer.nonce, answer.proof);
    }
    uint8_t bytes[CONNECT_ANSWER_BYTES];
    connect_answer_write(&answer, bytes);
    if (status == DD_OK) {
        status = connect_send(job->fd, bytes, sizeof bytes, wait, err);
    }
    if (status != DD_OK || !goes_on) {
        return status != DD_OK ? status : refuse(answer.verdict, err);
    }
    if (secret.len == 0) {
        return DD_OK;
    }
    uint8_t proof[DD_SHA256_BYTES];
    status = connect_recv(job->fd, proof, sizeof proof, wait, err);
    if (status == DD_OK && !connect_check_proof(secret, CONNECT_DIALER, hello, answer.nonce, proof)) {
        (void)send_verdict(job, CONNECT_DENIED, wait, NULL);
        return refuse(CONNECT_DENIED, err);
    }
    return status;
}

/* Takes the socket on success. */
static dd_status
open_link(connect_job *job, const dd_wait *wait, dd_link **link, dd_error *err)
{
    dd_status status = send_verdict(job, CONNECT_OK, wait, err);
    if (status == DD_OK) {
        status = job->is_unix
                     ? dd_link_offer_shm(job->fd, job->connector->options.ring_nbytes, link, wait, err)
                     : dd_link_open_tcp(job->fd, link, err);
    }
    if (status == DD_OK) {
        job->fd = -1;
    }
    return status;
}

static dd_status
make_first_link(connect_job *job, const connect_hello *hello, const dd_wait *wait, dd_error *err)
{
    const dd_connect_handler *handler = &job->connector->handler;
    if (!connect_claim(job, &hello->from)) {
        return send_verdict(job, CONNECT_BUSY, wait, err);
    }
    dd_status status = DD_OK;
    dd_link *link = NULL;
    if (handler->may_accept(handler->ctx, &hello->from)) {
        status = open_link(job, wait, &link, err);
        if (link != NULL) {
            handler->on_link(handler->ctx, &hello->from, 0, link);
        } else {
            handler->on_accept_failed(handler->ctx, &hello->from);
        }
    } else {
        status = send_verdict(job, CONNECT_BUSY, wait, err);
    }
    connect_settle_accept(job, link != NULL);
    return status;
}

static dd_status
make_lane(connect_job *job, const connect_hello *hello, const dd_wait *wait, dd_error *err)
{
    const dd_connect_handler *handler = &job->connector->handler;
    dd_link *link = NULL;
    dd_status status = open_link(job, wait, &link, err);
    if (status == DD_OK) {
        handler->on_link(handler->ctx, &hello->from, (int)hello->lane, link);
    }
    return status;
}

void
connect_accept_run(connect_job *job)
{
    dd_wait wait = connect_job_wait(job);
    dd_error err = {0};
    connect_hello hello = {0};
    char from[DD_ADDR_TEXT_MAX];
    dd_addr addr = dd_sock_peer_addr(job->fd);
    dd_status status = identify(job, &hello, &wait, &err);
    if (status == DD_OK) {
        status =
            hello.lane == 0 ? make_first_link(job, &hello, &wait, &err) : make_lane(job, &hello, &wait, &err);
    }
    if (status != DD_OK && status != DD_INTERRUPTED) {
        DD_LOG(DD_LOG_INFO, "connection from %s came to nothing: %s", dd_addr_print(&addr, from),
               err.message);
    }
    dd_sock_close(job->fd);
    job->fd = -1;
}

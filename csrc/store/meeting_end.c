/* How a meeting has ended, as bytes in the store:
 *
 *     off                           a rank has run out of time: the others go on to the next meeting
 *     failed <code> <rank> <pid>    a newline, the culprit's host, a newline and a message: an error that all raise
 *     ok <size> <id>                a newline, and for every rank four bytes of length (little endian) and its card */
#include "store/meeting_internal.h"

#include "core/little_endian.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

dd_bytes
meeting_card_of(dd_bytes published)
{
    size_t head = published.len < MEETING_NONCE_BYTES ? published.len : MEETING_NONCE_BYTES;
    return dd_bytes_of(published.data + head, published.len - head);
}

dd_status
meeting_encode_end(uint64_t id, const dd_blob_list *published, dd_blob *end, dd_error *err)
{
    char line[64];
    int len = snprintf(line, sizeof line, "ok %zu %016" PRIx64 "\n", published->count, id);
    dd_status status = dd_blob_append(end, line, (size_t)len, err);
    for (size_t i = 0; i < published->count && status == DD_OK; i++) {
        dd_bytes card = meeting_card_of(dd_blob_view(&published->items[i]));
        uint8_t prefix[4];
        dd_put_number(prefix, card.len, sizeof prefix);
        status = dd_blob_append(end, prefix, sizeof prefix, err);
        if (status == DD_OK) {
            status = dd_blob_append(end, card.data, card.len, err);
        }
    }
    return status;
}

/* Takes the next card off the front of `rest`; false when there is none. */
static bool
take_card(dd_bytes *rest, dd_bytes *card)
{
    if (rest->len < 4) {
        return false;
    }
    size_t len = (size_t)dd_get_number(rest->data, 4);
    if (len > rest->len - 4) {
        return false;
    }
    *card = dd_bytes_of(rest->data + 4, len);
    *rest = dd_bytes_of(rest->data + 4 + len, rest->len - 4 - len);
    return true;
}

static dd_status
find_cards(int size, dd_bytes rest, dd_bytes **cards, dd_error *err)
{
    /* No room for more cards than there can be in so many bytes. */
    bool is_short = rest.len / 4 < (size_t)size;
    dd_bytes *found = is_short ? NULL : dd_mem_alloc_array((size_t)size, sizeof *found);
    if (found == NULL && !is_short) {
        return dd_error_no_memory(err, (size_t)size * sizeof *found);
    }
    int count = 0;
    while (!is_short && count < size && take_card(&rest, &found[count])) {
        count++;
    }
    if (count < size) {
        dd_mem_free(found);
        return dd_error_set(err, DD_STORE, "the end of a meeting of %d lacks the card of rank %d", size,
                            count);
    }
    *cards = found;
    return DD_OK;
}

dd_status
meeting_decode_end(int size, dd_blob *end, dd_meeting_end *out, dd_error *err)
{
    char text[64] = "";
    memcpy(text, end->data, end->len < sizeof text - 1 ? end->len : sizeof text - 1);
    char *newline = strchr(text, '\n');
    size_t len = newline != NULL ? (size_t)(newline - text) : strlen(text);
    text[len] = '\0';
    int said = 0;
    uint64_t id = 0;
    if (newline == NULL || sscanf(text, "ok %d %" SCNx64, &said, &id) != 2 || said != size) {
        return dd_error_set(err, DD_STORE, "the store says \"%s\" where the end of a meeting of %d should be",
                            text, size);
    }
    dd_bytes *cards = NULL;
    dd_status status = find_cards(size, dd_bytes_of(end->data + len + 1, end->len - len - 1), &cards, err);
    if (status == DD_OK) {
        *out = (dd_meeting_end){.id = id, .cards = cards, .bytes = *end};
        *end = (dd_blob){0};
    }
    return status;
}

void
dd_meeting_end_fini(dd_meeting_end *end)
{
    dd_mem_free(end->cards);
    dd_blob_fini(&end->bytes);
    *end = (dd_meeting_end){0};
}

size_t
meeting_encode_failure(const dd_error *error, char end[MEETING_FAILURE_MAX])
{
    return (size_t)snprintf(end, MEETING_FAILURE_MAX, "failed %d %d %lld\n%s\n%s", (int)error->code,
                            error->culprit.rank, error->culprit.pid, error->culprit.host, error->message);
}

bool
meeting_decode_failure(dd_bytes end, dd_error *error)
{
    char text[MEETING_FAILURE_MAX];
    if (end.len >= sizeof text) {
        return false;
    }
    memcpy(text, end.data, end.len);
    text[end.len] = '\0';
    int code = 0;
    int rank = 0;
    long long pid = 0;
    char *host = strchr(text, '\n');
    char *message = host != NULL ? strchr(host + 1, '\n') : NULL;
    if (message == NULL || sscanf(text, "failed %d %d %lld", &code, &rank, &pid) != 3 || code <= DD_OK ||
        code >= DD_STATUS_COUNT) {
        return false;
    }
    *host++ = '\0';
    *message++ = '\0';
    dd_error_set(error, (dd_status)code, "%s", message);
    dd_error_blame(error, rank, host, pid);
    return true;
}

/* How a meeting has ended, as bytes in the store:
 *
 *     off                           a rank has run out of time: the others go on to the next meeting
 *     failed <code> <rank> <pid>    a newline, the culprit's host, a newline and a message: an error that all raise
 *     ok <size> <id>                a newline, and for every rank four bytes of length (little endian) and what it has published */
#include "group/group_meet_internal.h"

#include "core/little_endian.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

dd_status
meeting_encode_end(uint64_t id, const dd_blob_list *cards, dd_blob *end, dd_error *err)
{
    char line[64];
    int len = snprintf(line, sizeof line, "ok %zu %016" PRIx64 "\n", cards->count, id);
    dd_status status = dd_blob_append(end, line, (size_t)len, err);
    for (size_t i = 0; i < cards->count && status == DD_OK; i++) {
        const dd_blob *card = &cards->items[i];
        uint8_t prefix[4];
        dd_put_number(prefix, card->len, sizeof prefix);
        status = dd_blob_append(end, prefix, sizeof prefix, err);
        if (status == DD_OK) {
            status = dd_blob_append(end, card->data, card->len, err);
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

/* The cards come without what was published in front of them. */
static dd_status
decode_cards(int size, dd_bytes rest, dd_blob_list *cards, dd_error *err)
{
    dd_status status = dd_blob_list_init(cards, (size_t)size, err);
    for (size_t i = 0; i < cards->count && status == DD_OK; i++) {
        dd_bytes card;
        if (!take_card(&rest, &card) || card.len < MEETING_NONCE_BYTES) {
            return dd_error_set(err, DD_STORE, "the end of a meeting of %d lacks the card of rank %zu", size,
                                i);
        }
        status =
            dd_blob_assign(&cards->items[i],
                           dd_bytes_of(card.data + MEETING_NONCE_BYTES, card.len - MEETING_NONCE_BYTES), err);
    }
    return status;
}

dd_status
meeting_decode_end(int size, dd_bytes end, uint64_t *id, dd_blob_list *cards, dd_error *err)
{
    char text[64] = "";
    memcpy(text, end.data, end.len < sizeof text - 1 ? end.len : sizeof text - 1);
    char *newline = strchr(text, '\n');
    size_t len = newline != NULL ? (size_t)(newline - text) : strlen(text);
    text[len] = '\0';
    int said = 0;
    if (newline == NULL || sscanf(text, "ok %d %" SCNx64, &said, id) != 2 || said != size) {
        return dd_error_set(err, DD_STORE, "the store says \"%s\" where the end of a meeting of %d should be",
                            text, size);
    }
    return decode_cards(size, dd_bytes_of(end.data + len + 1, end.len - len - 1), cards, err);
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

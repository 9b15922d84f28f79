/* Configurations: the exact bytes that each version of NCCL receives. */
#include "check.h"
#include "nccl/comm/config.h"

#include <stdio.h>
#include <string.h>

/* Return an NCCL that has only a version. */
static dd_nccl_lib
lib_of(int version)
{
    dd_nccl_lib lib = {.version = version, .path = "libnccl.so.2"};
    dd_nccl_version_print(version, lib.version_text);
    return lib;
}

static const int VERSIONS[] = {21801, 21805, 21903, 22005, 22105, 22203, 22304, 22403,
                               22501, 22602, 22703, 22803, 22807, 22809, 22902, 22903,
                               22907, 23003, 23004, 23007, 23102, 23203, 23300};
#define NVERSIONS (sizeof VERSIONS / sizeof VERSIONS[0])

/* An independent list of the offsets of NCCL's fields. */
typedef struct expected_field {
    const char *name;
    size_t offset;
    int since;
    bool is_text;
} expected_field;

static const expected_field EXPECTED[] = {
    {"blocking", 16, 21400, false},
    {"cgaClusterSize", 20, 21701, false},
    {"minCTAs", 24, 21701, false},
    {"maxCTAs", 28, 21701, false},
    {"netName", 32, 21701, true},
    {"splitShare", 40, 21801, false},
    {"trafficClass", 44, 22602, false},
    {"commName", 48, 22703, true},
    {"collnetEnable", 56, 22703, false},
    {"CTAPolicy", 60, 22703, false},
    {"shrinkShare", 64, 22703, false},
    {"nvlsCTAs", 68, 22703, false},
    {"nChannelsPerNetPeer", 72, 22803, false},
    {"nvlinkCentricSched", 76, 22803, false},
    {"graphUsageMode", 80, 22902, false},
    {"numRmaCtx", 84, 22902, false},
    {"maxP2pPeers", 88, 23003, false},
    {"graphStreamOrdering", 92, 23007, false},
    {"launchOrderImplicit", 96, 23102, false},
    {"numRmaSig", 100, 23102, false},
    {"rmaEagerInit", 104, 23102, false},
    {"hostCftMode", 108, 23102, false},
    {"nvlsHostMode", 112, 23203, false},
};
#define NEXPECTED (sizeof EXPECTED / sizeof EXPECTED[0])
#define CONFIG_SIZE 120

/* Write the structure with all fields undefined, as a version expects it. */
static void
expect_undefined(uint8_t *bytes, int version)
{
    memset(bytes, 0, CONFIG_SIZE);
    size_t size = CONFIG_SIZE;
    uint32_t magic = 0xcafebeef;
    uint32_t code = (uint32_t)(version < 23203 ? version : 23203);
    memcpy(bytes, &size, 8);
    memcpy(bytes + 8, &magic, 4);
    memcpy(bytes + 12, &code, 4);
    int32_t undefined = INT32_MIN;
    for (size_t i = 0; i < NEXPECTED; i++) {
        if (!EXPECTED[i].is_text) {
            memcpy(bytes + EXPECTED[i].offset, &undefined, 4);
        }
    }
}

static void
put_int(uint8_t *bytes, size_t offset, int32_t number)
{
    memcpy(bytes + offset, &number, 4);
}

/* Compare the packed structure with the expected bytes, and its texts by their contents. */
static void
check_packed(dd_nccl_abi_config packed, const uint8_t *expected, const char *net_name, const char *comm_name)
{
    CHECK((packed.netName == NULL) == (net_name == NULL));
    CHECK((packed.commName == NULL) == (comm_name == NULL));
    CHECK(net_name == NULL || packed.netName == NULL || strcmp(packed.netName, net_name) == 0);
    CHECK(comm_name == NULL || packed.commName == NULL || strcmp(packed.commName, comm_name) == 0);
    packed.netName = NULL;
    packed.commName = NULL;
    /* The last four bytes are padding. */
    CHECK_INT(sizeof packed, CONFIG_SIZE);
    CHECK_BYTES(dd_bytes_of(&packed, CONFIG_SIZE - 4), dd_bytes_of(expected, CONFIG_SIZE - 4));
}

TEST(unset_configuration_fields_are_undefined_for_every_nccl_version)
{
    dd_nccl_config config;
    dd_nccl_config_init(&config);
    CHECK(dd_nccl_config_is_blocking(&config));
    for (size_t i = 0; i < NVERSIONS; i++) {
        dd_nccl_lib lib = lib_of(VERSIONS[i]);
        dd_nccl_abi_config packed;
        uint8_t expected[CONFIG_SIZE];
        CHECK_OK(dd_nccl_config_pack(&config, &lib, &packed, check_err()));
        expect_undefined(expected, VERSIONS[i]);
        check_packed(packed, expected, NULL, NULL);
    }
}

static void
check_field(const expected_field *field, int version)
{
    dd_nccl_config config;
    dd_nccl_config_init(&config);
    dd_nccl_config_value value = {.is_set = true, .is_text = field->is_text, .number = 7, .text = "IB"};
    REQUIRE_OK(dd_nccl_config_set(&config, field->name, &value, check_err()));
    dd_nccl_lib lib = lib_of(version);
    dd_nccl_abi_config packed;
    dd_status status = dd_nccl_config_pack(&config, &lib, &packed, check_err());
    if (version < field->since) {
        char since[16];
        CHECK_INT(status, DD_NOT_SUPPORTED);
        CHECK_CONTAINS(check_message(), dd_nccl_version_print(field->since, since));
        CHECK_CONTAINS(check_message(), lib.version_text);
        return;
    }
    CHECK_INT(status, DD_OK);
    uint8_t expected[CONFIG_SIZE];
    expect_undefined(expected, version);
    if (!field->is_text) {
        put_int(expected, field->offset, 7);
    }
    if (strcmp(field->name, "minCTAs") == 0) {
        put_int(expected, 28, 64);
    }
    if (strcmp(field->name, "maxCTAs") == 0) {
        put_int(expected, 24, 1);
    }
    check_packed(packed, expected, strcmp(field->name, "netName") == 0 ? "IB" : NULL,
                 strcmp(field->name, "commName") == 0 ? "IB" : NULL);
}

TEST(each_configuration_field_is_packed_or_refused_for_every_nccl_version)
{
    for (size_t i = 0; i < NEXPECTED; i++) {
        for (size_t k = 0; k < NVERSIONS; k++) {
            check_field(&EXPECTED[i], VERSIONS[k]);
        }
    }
}

TEST(the_table_of_configuration_fields_is_complete)
{
    dd_nccl_config config;
    dd_nccl_config_init(&config);
    REQUIRE(config.nfields == NEXPECTED);
    for (size_t i = 0; i < config.nfields; i++) {
        CHECK(strcmp(config.fields[i].name, EXPECTED[i].name) == 0);
        CHECK_INT(config.fields[i].offset, EXPECTED[i].offset);
        CHECK_INT(config.fields[i].since, EXPECTED[i].since);
    }
}

TEST(configuration_values_are_checked_and_read_back)
{
    dd_nccl_config config;
    dd_nccl_config_init(&config);
    dd_nccl_config_value number = {.is_set = true, .number = 4};
    dd_nccl_config_value text = {.is_set = true, .is_text = true, .text = "Socket"};
    dd_nccl_config_value none = {0};
    dd_nccl_config_value got;
    CHECK_OK(dd_nccl_config_set(&config, "min_ctas", &number, check_err()));
    CHECK_OK(dd_nccl_config_set(&config, "net_name", &text, check_err()));
    CHECK_OK(dd_nccl_config_get(&config, "minCTAs", &got, check_err()));
    CHECK(got.is_set && !got.is_text && got.number == 4);
    CHECK_OK(dd_nccl_config_get(&config, "netName", &got, check_err()));
    CHECK(got.is_set && got.is_text && strcmp(got.text, "Socket") == 0);

    dd_nccl_config copy = config; /* configurations can be copied by assignment */
    CHECK_OK(dd_nccl_config_set(&config, "min_ctas", &none, check_err()));
    CHECK_OK(dd_nccl_config_set(&config, "net_name", &none, check_err()));
    CHECK_OK(dd_nccl_config_get(&config, "min_ctas", &got, check_err()));
    CHECK(!got.is_set);
    CHECK_OK(dd_nccl_config_get(&config, "net_name", &got, check_err()));
    CHECK(!got.is_set);
    dd_nccl_lib lib = lib_of(22703);
    dd_nccl_abi_config packed;
    CHECK_OK(dd_nccl_config_pack(&copy, &lib, &packed, check_err()));
    CHECK(packed.netName == copy.texts[0]);

    CHECK_STATUS(dd_nccl_config_set(&config, "minctas", &number, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "'minctas'");
    CHECK_CONTAINS(check_message(), "nvls_host_mode");
    CHECK_STATUS(dd_nccl_config_set(&config, "net_name", &number, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "net_name: got a number");
    CHECK_STATUS(dd_nccl_config_set(&config, "blocking", &text, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "blocking: got text");
    number.number = (long long)INT_MAX + 1;
    CHECK_STATUS(dd_nccl_config_set(&config, "blocking", &number, check_err()), DD_INVALID_ARGUMENT);
    number.number = INT_MIN;
    CHECK_STATUS(dd_nccl_config_set(&config, "blocking", &number, check_err()), DD_INVALID_ARGUMENT);
    text.text = "";
    CHECK_STATUS(dd_nccl_config_set(&config, "net_name", &text, check_err()), DD_INVALID_ARGUMENT);
    char longest[DD_NCCL_CONFIG_TEXT_MAX + 1];
    memset(longest, 'x', sizeof longest);
    longest[DD_NCCL_CONFIG_TEXT_MAX] = '\0';
    text.text = longest;
    CHECK_STATUS(dd_nccl_config_set(&config, "net_name", &text, check_err()), DD_INVALID_ARGUMENT);
    text.text = longest + 1;
    CHECK_OK(dd_nccl_config_set(&config, "net_name", &text, check_err()));

    number.number = 0;
    CHECK_OK(dd_nccl_config_set(&config, "blocking", &number, check_err()));
    CHECK(!dd_nccl_config_is_blocking(&config));
}

/* ---- configurations of collectives */

#define COLL_SIZE 72

static void
expect_coll_undefined(uint8_t *bytes, int version)
{
    memset(bytes, 0, COLL_SIZE);
    size_t size = COLL_SIZE;
    uint32_t head[2] = {0xcafebeef, (uint32_t)(version < 23203 ? version : 23203)};
    memcpy(bytes, &size, 8);
    memcpy(bytes + 8, head, 8);
    for (size_t offset = 24; offset < 40; offset += 4) {
        put_int(bytes, offset, INT32_MIN); /* minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize */
    }
    put_int(bytes, 48, 1);         /* forceAlgSelection, after the pointer algSelection */
    put_int(bytes, 52, INT32_MIN); /* CTAPolicy */
}

TEST(configurations_of_collectives_are_packed_for_every_nccl_version)
{
    static const int COLL_VERSIONS[] = {23102, 23203, 23300};
    for (size_t i = 0; i < 3; i++) {
        dd_nccl_lib lib = lib_of(COLL_VERSIONS[i]);
        dd_nccl_config config;
        dd_nccl_abi_coll_config packed;
        uint8_t expected[COLL_SIZE];
        dd_nccl_coll_config_init(&config);
        expect_coll_undefined(expected, COLL_VERSIONS[i]);
        CHECK_OK(dd_nccl_coll_config_pack(&config, &lib, &packed, check_err()));
        CHECK_BYTES(dd_bytes_of(&packed, sizeof packed), dd_bytes_of(expected, COLL_SIZE));

        dd_nccl_config_value number = {.is_set = true, .number = 2};
        dd_nccl_config_value tag = {.is_set = true, .number = 0x1122334455667788};
        CHECK_OK(dd_nccl_config_set(&config, "max_ctas", &number, check_err()));
        CHECK_OK(dd_nccl_config_set(&config, "user_profiler_tag", &tag, check_err()));
        put_int(expected, 24, 1);
        put_int(expected, 28, 2);
        memcpy(expected + 56, &tag.number, 8);
        CHECK_OK(dd_nccl_coll_config_pack(&config, &lib, &packed, check_err()));
        CHECK_BYTES(dd_bytes_of(&packed, sizeof packed), dd_bytes_of(expected, COLL_SIZE));

        dd_nccl_config_value ring = {.is_set = true, .is_text = true, .text = "ring"};
        CHECK_OK(dd_nccl_config_set(&config, "algSelection", &ring, check_err()));
        CHECK_OK(dd_nccl_coll_config_pack(&config, &lib, &packed, check_err()));
        CHECK(packed.algSelection != NULL && strcmp(packed.algSelection, "ring") == 0);

        dd_nccl_config_value event = {.is_set = true, .number = 0x1000};
        dd_nccl_config_value got;
        CHECK_OK(dd_nccl_config_set(&config, "launch_completion_event", &event, check_err()));
        CHECK_OK(dd_nccl_config_get(&config, "launch_completion_event", &got, check_err()));
        CHECK_INT(got.number, 0x1000);
        bool has_events = COLL_VERSIONS[i] >= 23203;
        CHECK_STATUS(dd_nccl_coll_config_pack(&config, &lib, &packed, check_err()),
                     has_events ? DD_OK : DD_NOT_SUPPORTED);
        CHECK(!has_events || packed.launchCompletionEvent == (dd_cuda_event)(uintptr_t)0x1000);
    }
    dd_nccl_lib old = lib_of(23007);
    dd_nccl_config config;
    dd_nccl_abi_coll_config packed;
    dd_nccl_config_value number = {.is_set = true, .number = 2};
    dd_nccl_coll_config_init(&config);
    CHECK_OK(dd_nccl_config_set(&config, "min_ctas", &number, check_err()));
    CHECK_STATUS(dd_nccl_coll_config_pack(&config, &old, &packed, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "2.31.2");
}

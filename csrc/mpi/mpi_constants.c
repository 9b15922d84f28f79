/* Constants of the MPI libraries: MPI 5's standard ABI, MPICH (also Intel MPI), and Open MPI. */
#include "mpi/mpi_internal.h"

#include <string.h>

static const mpi_constants STANDARD = {
    .comm_world = 0x101,
    .comm_self = 0x102,
    .errors_return = 0x143,
    .byte = 0x247,
    .types =
        {
            [DD_DTYPE_INT8] = 0x240,
            [DD_DTYPE_UINT8] = 0x241,
            [DD_DTYPE_INT16] = 0x248,
            [DD_DTYPE_UINT16] = 0x249,
            [DD_DTYPE_INT32] = 0x250,
            [DD_DTYPE_UINT32] = 0x251,
            [DD_DTYPE_INT64] = 0x258,
            [DD_DTYPE_UINT64] = 0x259,
            [DD_DTYPE_FLOAT32] = 0x210,
            [DD_DTYPE_FLOAT64] = 0x214,
            [DD_DTYPE_COMPLEX64] = 0x212,
            [DD_DTYPE_COMPLEX128] = 0x216,
        },
    .ops =
        {
            [DD_REDOP_SUM] = 0x21,
            [DD_REDOP_PRODUCT] = 0x24,
            [DD_REDOP_MIN] = 0x22,
            [DD_REDOP_MAX] = 0x23,
            [DD_REDOP_BAND] = 0x28,
            [DD_REDOP_BOR] = 0x29,
            [DD_REDOP_BXOR] = 0x2a,
        },
    .in_place = (void *)1,
    .status_ignore = NULL,
    .any_source = -1,
    .tag_ub = 501,
    .thread_multiple = 4096,
    .err_truncate = 15,
    .source_at = 0,
};

/* Constants of MPICH and compatible libraries. */
static const mpi_constants MPICH = {
    .comm_world = 0x44000000,
    .comm_self = 0x44000001,
    .errors_return = 0x54000001,
    .byte = 0x4c00010d,
    .types =
        {
            [DD_DTYPE_INT8] = 0x4c000137,
            [DD_DTYPE_UINT8] = 0x4c00013b,
            [DD_DTYPE_INT16] = 0x4c000238,
            [DD_DTYPE_UINT16] = 0x4c00023c,
            [DD_DTYPE_INT32] = 0x4c000439,
            [DD_DTYPE_UINT32] = 0x4c00043d,
            [DD_DTYPE_INT64] = 0x4c00083a,
            [DD_DTYPE_UINT64] = 0x4c00083e,
            [DD_DTYPE_FLOAT32] = 0x4c00040a,
            [DD_DTYPE_FLOAT64] = 0x4c00080b,
            [DD_DTYPE_COMPLEX64] = 0x4c000840,
            [DD_DTYPE_COMPLEX128] = 0x4c001041,
        },
    .ops =
        {
            [DD_REDOP_SUM] = 0x58000003,
            [DD_REDOP_PRODUCT] = 0x58000004,
            [DD_REDOP_MIN] = 0x58000002,
            [DD_REDOP_MAX] = 0x58000001,
            [DD_REDOP_BAND] = 0x58000006,
            [DD_REDOP_BOR] = 0x58000008,
            [DD_REDOP_BXOR] = 0x5800000a,
        },
    .in_place = (void *)-1,
    .status_ignore = (mpi_status *)1,
    .any_source = -2,
    .tag_ub = 0x64400001,
    .thread_multiple = 3,
    .err_truncate = 14,
    .source_at = 2,
};

/* Constants of Open MPI. Its handles are addresses of variables, found by OPEN_MPI_HANDLES. */
static const mpi_constants OPEN_MPI = {
    .in_place = (void *)1,
    .status_ignore = NULL,
    .any_source = -1,
    .tag_ub = 0,
    .thread_multiple = 3,
    .err_truncate = 15,
    .source_at = 0,
};

#define OF_CONSTANT(member) offsetof(mpi_constants, member)

static const dd_dylib_symbol OPEN_MPI_HANDLES[] = {
    {"ompi_mpi_comm_world", OF_CONSTANT(comm_world), false},
    {"ompi_mpi_comm_self", OF_CONSTANT(comm_self), false},
    {"ompi_mpi_errors_return", OF_CONSTANT(errors_return), false},
    {"ompi_mpi_byte", OF_CONSTANT(byte), false},
    {"ompi_mpi_int8_t", OF_CONSTANT(types[DD_DTYPE_INT8]), false},
    {"ompi_mpi_uint8_t", OF_CONSTANT(types[DD_DTYPE_UINT8]), false},
    {"ompi_mpi_int16_t", OF_CONSTANT(types[DD_DTYPE_INT16]), false},
    {"ompi_mpi_uint16_t", OF_CONSTANT(types[DD_DTYPE_UINT16]), false},
    {"ompi_mpi_int32_t", OF_CONSTANT(types[DD_DTYPE_INT32]), false},
    {"ompi_mpi_uint32_t", OF_CONSTANT(types[DD_DTYPE_UINT32]), false},
    {"ompi_mpi_int64_t", OF_CONSTANT(types[DD_DTYPE_INT64]), false},
    {"ompi_mpi_uint64_t", OF_CONSTANT(types[DD_DTYPE_UINT64]), false},
    {"ompi_mpi_float", OF_CONSTANT(types[DD_DTYPE_FLOAT32]), false},
    {"ompi_mpi_double", OF_CONSTANT(types[DD_DTYPE_FLOAT64]), false},
    {"ompi_mpi_c_float_complex", OF_CONSTANT(types[DD_DTYPE_COMPLEX64]), false},
    {"ompi_mpi_c_double_complex", OF_CONSTANT(types[DD_DTYPE_COMPLEX128]), false},
    {"ompi_mpi_op_sum", OF_CONSTANT(ops[DD_REDOP_SUM]), false},
    {"ompi_mpi_op_prod", OF_CONSTANT(ops[DD_REDOP_PRODUCT]), false},
    {"ompi_mpi_op_min", OF_CONSTANT(ops[DD_REDOP_MIN]), false},
    {"ompi_mpi_op_max", OF_CONSTANT(ops[DD_REDOP_MAX]), false},
    {"ompi_mpi_op_band", OF_CONSTANT(ops[DD_REDOP_BAND]), false},
    {"ompi_mpi_op_bor", OF_CONSTANT(ops[DD_REDOP_BOR]), false},
    {"ompi_mpi_op_bxor", OF_CONSTANT(ops[DD_REDOP_BXOR]), false},
};

static const char *
file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

bool
mpi_is_open_mpi(const mpi_library *library)
{
    return strncmp(library->version, "Open MPI", strlen("Open MPI")) == 0;
}

dd_status
mpi_find_constants(mpi_library *library, dd_error *err)
{
    if (mpi_is_open_mpi(library)) {
        library->constants = OPEN_MPI;
        return dd_dylib_resolve(&library->dylib, OPEN_MPI_HANDLES,
                                sizeof OPEN_MPI_HANDLES / sizeof OPEN_MPI_HANDLES[0], &library->constants,
                                err);
    }
    bool is_standard = strncmp(file_name(library->dylib.path), "libmpi_abi.", strlen("libmpi_abi.")) == 0;
    library->constants = is_standard ? STANDARD : MPICH;
    return DD_OK;
}

/* Reductions with the vectors of ARMv8-A. */
#if defined(__aarch64__)

#include <arm_neon.h>

#define VECTOR_NBYTES 16
#define VECTOR_REST dd_kernels_scalar
#define VECTOR_LOAD_FLOAT16(at) vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)))
#define VECTOR_STORE_FLOAT16(at, x) vst1_u8(at, vreinterpret_u8_f16(vcvt_f16_f32((float32x4_t)(x))))

#include "kernels/reduce_vector_internal.h"

#define ENTRY(T, op, form) [DD_DTYPE_##T][DD_REDOP_##op][DD_FORM_##form] = kernel_##T##_##op##_##form,
dd_kernel_table dd_kernels_neon = {DD_VECTOR_KERNEL_LIST(ENTRY)};

#endif

/* Search for NaN on a device. tools/make_nan_ptx.py compiles it into nan_ptx.inc. The libcuda stub
 * (tests/stubs/cuda_stub_module.c) runs it as C, thread by thread: plain C, except CUDA's
 * keywords. */

#ifdef __CUDACC__
#define DD_KERNEL extern "C" __global__ void
#define DD_DEVICE static __device__ __forceinline__
/* A slightly stale value is fine. */
#define DD_PEEK(address) (*(volatile const dd_u64 *)(address))
#endif

typedef unsigned long long dd_u64;

/* Bytes that a thread reads at a time. */
#define WIDE_NBYTES 16

/* True if the low nbits of `value`, without the sign, are above infinity. Ignores higher bits. */
DD_DEVICE int
is_nan(dd_u64 value, unsigned nbits, dd_u64 limit)
{
    return (value & (~0ull >> (65 - nbits))) >= limit;
}

/* Read byte by byte, because the float may be unaligned. */
DD_DEVICE dd_u64
float_at(const unsigned char *data, dd_u64 index, unsigned nbits)
{
    const unsigned nbytes = nbits / 8;
    dd_u64 value = 0;
    for (unsigned k = 0; k < nbytes; k++) {
        value |= (dd_u64)data[index * nbytes + k] << (8 * k);
    }
    return value;
}

/* Return the index of the first NaN in a word of several floats; their number if there is none. */
DD_DEVICE unsigned
first_in_word(dd_u64 word, unsigned nbits, dd_u64 limit)
{
    unsigned lane = 0;
    while (lane < 64 / nbits && !is_nan(word >> (lane * nbits), nbits, limit)) {
        lane++;
    }
    return lane;
}

/* Return the index of the first NaN in one thread's share; nfloats if there is none. Most floats
 * are read in wide pieces, from the first aligned address on. Less than one piece is before and
 * after them, unless the floats themselves are unaligned: then all of them are read one by one. */
DD_DEVICE dd_u64
first_of_thread(const unsigned char *data, dd_u64 nfloats, unsigned nbits, dd_u64 limit, dd_u64 thread,
                dd_u64 nthreads)
{
    const unsigned nbytes = nbits / 8;
    const unsigned nlanes = 64 / nbits;
    const dd_u64 before = (0 - (dd_u64)data) % WIDE_NBYTES;
    const dd_u64 head = before % nbytes == 0 && before / nbytes < nfloats ? before / nbytes : nfloats;
    const dd_u64 nwide = (nfloats - head) / (2 * nlanes);
    const dd_u64 tail = head + nwide * 2 * nlanes;
    const ulonglong2 *wide = (const ulonglong2 *)(data + head * nbytes);
    for (dd_u64 i = thread; i < head; i += nthreads) {
        if (is_nan(float_at(data, i, nbits), nbits, limit)) {
            return i;
        }
    }
    for (dd_u64 i = thread; i < nwide; i += nthreads) {
        const ulonglong2 words = wide[i];
        unsigned lane = first_in_word(words.x, nbits, limit);
        if (lane == nlanes) {
            lane += first_in_word(words.y, nbits, limit);
        }
        if (lane < 2 * nlanes) {
            return head + i * 2 * nlanes + lane;
        }
    }
    if (thread < nfloats - tail && is_nan(float_at(data, tail + thread, nbits), nbits, limit)) {
        return tail + thread;
    }
    return nfloats;
}

/* Lower *report, which may be host memory, to key + the index of the first NaN if that is smaller.
 * There must be at least as many threads as a wide piece has floats. */
DD_DEVICE void
find_nan(const unsigned char *data, dd_u64 nfloats, unsigned nbits, dd_u64 limit, dd_u64 key, dd_u64 *report)
{
    const dd_u64 thread = (dd_u64)blockIdx.x * blockDim.x + threadIdx.x;
    const dd_u64 nthreads = (dd_u64)gridDim.x * blockDim.x;
    const dd_u64 first = first_of_thread(data, nfloats, nbits, limit, thread, nthreads);
    if (first < nfloats && key + first < DD_PEEK(report)) {
        atomicMin(report, key + first);
    }
}

#define FIND_NAN(nbits)                                                                                        \
    DD_KERNEL dd_find_nan_##nbits(const unsigned char *data, dd_u64 nfloats, dd_u64 limit, dd_u64 key,         \
                                  dd_u64 *report)                                                              \
    {                                                                                                          \
        find_nan(data, nfloats, nbits, limit, key, report);                                                    \
    }

FIND_NAN(8)
FIND_NAN(16)
FIND_NAN(32)
FIND_NAN(64)

// Philox 4x32-10, and numbers from its blocks as `philox.rs` makes them, which has the sources.
//
// A node's state is three words: the key, the upper half of the counter at the start, and the blocks taken so far.

struct Four {
    u32 v[4];
};

// The block at this place after the start of the run's stream; the counter has 128 bits.
static __device__ __forceinline__ Four draw(const u64* state, u64 place) {
    const u64 low = state[2] + place, high = state[1] + (low < place);
    u32 a = (u32)low, b = (u32)(low >> 32), c = (u32)high, d = (u32)(high >> 32);
    u32 key0 = (u32)state[0], key1 = (u32)(state[0] >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 p = (u64)0xD2511F53u * a, q = (u64)0xCD9E8D57u * c;
        a = (u32)(q >> 32) ^ b ^ key0;
        b = (u32)q;
        c = (u32)(p >> 32) ^ d ^ key1;
        d = (u32)p;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {{a, b, c, d}};
}


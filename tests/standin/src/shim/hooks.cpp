// Linked into every module of kernels: the instrumentation's hooks, atomics, and the way to the driver's scheduler.
// Compiled once, without instrumentation. `Bridge` is the driver's; its layout is that of `bridge.rs`.
#include "kernel.h"
typedef unsigned char u8;
struct Bridge {
    char* base; size_t size; u8* shadow; u8* dirty; unsigned* pages; size_t page_count;
    size_t slice_shift; standin_u64 reach; size_t registered;
    unsigned next, count, reversed, have, done_count, lane;
    unsigned done[32];
    void (*outside)(const void*, size_t, unsigned);
    void (*bad)(const void*, size_t, unsigned);
    void (*sync_block)();
    standin_u64 (*sync_warp)(unsigned, int, standin_u64, int);
    void (*trap)();
};
enum { READ = 1, WRITE = 2, SOFT_READ = 4, SOFT_WRITE = 8, LIVE = 128 };
static Bridge* bridge;
extern "C" {
STANDIN_HIDDEN standin_place standin_now;
STANDIN_HIDDEN char standin_dynamic[232448] __attribute__((aligned(1024)));
extern char __start_standin_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_standin_shared[] __attribute__((weak, visibility("hidden")));
__attribute__((visibility("default"))) void standin_attach(Bridge* b, standin_place** place, char** dynamic, char** shared, size_t* length) {
    bridge = b;
    *place = &standin_now;
    *dynamic = standin_dynamic;
    *shared = __start_standin_shared;
    *length = (size_t)(__stop_standin_shared - __start_standin_shared);
}
}
static inline void mark(Bridge* b, size_t page) {
    if (__builtin_expect(!b->dirty[page], 0)) { b->dirty[page] = 1; b->pages[b->page_count++] = (unsigned)page; }
}
template <class T> static inline __attribute__((always_inline)) void touch(const void* p, unsigned bits) {
    Bridge* b = bridge;
    size_t at = (size_t)((const char*)p - b->base);
    if (__builtin_expect(at >= b->size, 0)) {
        if (((size_t)p >> 47) || b->registered) b->outside(p, sizeof(T), bits);
        return;
    }
    const T ones = (T)0x0101010101010101ull, live = (T)(ones * (T)LIVE);
    T s;
    __builtin_memcpy(&s, b->shadow + at, sizeof(T));
    if (__builtin_expect((s & live) != live || !((b->reach >> (at >> b->slice_shift)) & 1) || (at & (sizeof(T) - 1)), 0)) b->bad(p, sizeof(T), bits);
    s |= (T)(ones * (T)bits);
    __builtin_memcpy(b->shadow + at, &s, sizeof(T));
    mark(b, at >> 12);
}
static void touch_range(const void* p, size_t n, unsigned bits) {
    for (size_t i = 0; i < n; i++) touch<u8>((const char*)p + i, bits);
}
#define HOOKS(N, T)                                                                                                    \
    void __tsan_read##N(void* p) { touch<T>(p, READ); }                                                                \
    void __tsan_write##N(void* p) { touch<T>(p, WRITE); }                                                              \
    void __tsan_volatile_read##N(void* p) { touch<T>(p, SOFT_READ); }                                                  \
    void __tsan_volatile_write##N(void* p) { touch<T>(p, SOFT_WRITE); }                                                \
    void __tsan_unaligned_read##N(void* p) { touch<T>(p, READ); }                                                      \
    void __tsan_unaligned_write##N(void* p) { touch<T>(p, WRITE); }                                                    \
    void __tsan_unaligned_volatile_read##N(void* p) { touch<T>(p, SOFT_READ); }                                        \
    void __tsan_unaligned_volatile_write##N(void* p) { touch<T>(p, SOFT_WRITE); }
template <class T, class S> static inline T atomic(T* p, int what, T v, T was) {
    T o = *p, n = o;
    switch (what) {
        case STANDIN_ADD: n = o + v; break;
        case STANDIN_EXCHANGE: n = v; break;
        case STANDIN_CAS: n = o == was ? v : o; break;
        case STANDIN_MIN: n = v < o ? v : o; break;
        case STANDIN_MAX: n = v > o ? v : o; break;
        case STANDIN_MIN_SIGNED: n = (S)v < (S)o ? v : o; break;
        case STANDIN_MAX_SIGNED: n = (S)v > (S)o ? v : o; break;
        case STANDIN_AND: n = o & v; break;
        case STANDIN_OR: n = o | v; break;
        default: n = o ^ v; break;
    }
    *p = n;
    return o;
}
#pragma GCC visibility push(hidden)
extern "C" {
HOOKS(1, u8) HOOKS(2, unsigned short) HOOKS(4, unsigned) HOOKS(8, standin_u64)
#define HOOKS16(NAME, BITS) void NAME(void* p) { touch<standin_u64>(p, BITS); touch<standin_u64>((char*)p + 8, BITS); }
HOOKS16(__tsan_read16, READ) HOOKS16(__tsan_write16, WRITE)
HOOKS16(__tsan_volatile_read16, SOFT_READ) HOOKS16(__tsan_volatile_write16, SOFT_WRITE)
void __tsan_unaligned_read16(void* p) { touch_range(p, 16, READ); }
void __tsan_unaligned_write16(void* p) { touch_range(p, 16, WRITE); }
void __tsan_read_range(void* p, size_t n) { touch_range(p, n, READ); }
void __tsan_write_range(void* p, size_t n) { touch_range(p, n, WRITE); }
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void standin_sync_block() { bridge->sync_block(); }
standin_u64 standin_sync_warp(unsigned mask, int what, standin_u64 value, int from) { return bridge->sync_warp(mask, what, value, from); }
void standin_trap() { bridge->trap(); }
int standin_next_thread() {
    Bridge* b = bridge;
    if (b->have) { b->done[standin_now.lane >> 5] |= 1u << (standin_now.lane & 31); b->done_count++; b->have = 0; }
    if (b->next >= b->count) return 0;
    unsigned t = b->next++;
    if (b->reversed) t = b->count - 1 - t;
    standin_now.lane = t;
    b->have = 1;
    const uint3 d = standin_now.block_size;
    if (d.y == 1 && d.z == 1) { standin_now.thread = uint3{t, 0, 0}; return 1; }
    standin_now.thread = uint3{t % d.x, t / d.x % d.y, t / d.x / d.y};
    return 1;
}
static void* own(void* p, unsigned n) {
    if (n == 4) touch<unsigned>(p, SOFT_READ | SOFT_WRITE); else touch<standin_u64>(p, SOFT_READ | SOFT_WRITE);
    return p;
}
float standin_atomic_add_f32(float* p, float v) { own(p, 4); float o = *p; *p = o + v; return o; }
double standin_atomic_add_f64(double* p, double v) { own(p, 8); double o = *p; *p = o + v; return o; }
unsigned standin_atomic_u32(unsigned* p, int what, unsigned v, unsigned was) { own(p, 4); return atomic<unsigned, int>(p, what, v, was); }
standin_u64 standin_atomic_u64(standin_u64* p, int what, standin_u64 v, standin_u64 was) { own(p, 8); return atomic<standin_u64, long long>(p, what, v, was); }
}
#pragma GCC visibility pop

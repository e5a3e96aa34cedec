// Where resized images take their elements from, as resize.rs has it. Constants ALIGN (align_corners), HALF
// (half_pixel_centers), NEAREST.
struct Sample {
    i64 lower, upper;
    float lerp;
};

static TURRET_INLINE float coordinate(i64 i, float scale) {
    if (NEAREST) return HALF ? ((float)i + 0.5f) * scale : (float)i * scale;
    return HALF ? ((float)i + 0.5f) * scale - 0.5f : (float)i * scale;
}

static TURRET_INLINE Sample sample(i64 i, i64 size, float scale) {
    const float at = coordinate(i, scale), floor = floorf(at);
    if (NEAREST) {
        const i64 rounded = (i64)(ALIGN ? roundf(at) : floor), last = rounded < size ? rounded : size - 1;
        return Sample{last < 0 ? 0 : last, last < 0 ? 0 : last, 0.0f};
    }
    const i64 up = (i64)ceilf(at), upper = up < size ? up : size - 1, low = floor < 0 ? 0 : (i64)floor;
    return Sample{low < upper ? low : upper, upper, at - floor};
}

// The results along an axis that may take something from place `at`.
static TURRET_INLINE void takers(i64 at, i64 size, i64 count, float scale, i64& first, i64& end) {
    const float from = ((float)at - 2.0f) / scale - 2.0f, to = ((float)at + 2.0f) / scale + 2.0f;
    first = at == 0 || !(from > 0) ? 0 : from < (float)count ? (i64)from : count;
    end = at + 1 == size || !(to < (float)count) ? count : (i64)to + 1;
    end = end < count ? end : count;
}

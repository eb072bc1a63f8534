// The vector types of every level agree with the scalar conversions.
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "check.hpp"
#include "fedbench/simd.hpp"

#define FEDBENCH_KERNEL_FILE "simd_cases.inl"
#include "fedbench/foreach_isa.inl"

using namespace fedbench;

TEST(float16_conversion_is_exact) {
    CHECK_EQUAL(float16_to_float(0x3c00), 1.0F);
    CHECK_EQUAL(float16_to_float(0x0001), 0x1p-24F);
    CHECK_EQUAL(float16_to_float(0x03ff), 1023 * 0x1p-24F);
    CHECK_EQUAL(float16_to_float(0xfbff), -65504.0F);
    CHECK_EQUAL(float16_to_float(0x7c00), std::numeric_limits<float>::infinity());
    CHECK(std::isnan(float16_to_float(0x7e01)));
    CHECK(std::signbit(float16_to_float(0x8000)));
}

TEST(every_level_loads_like_the_scalar_conversion) {
    for (const IsaLevel level : available_isas()) {
        fedbench::testing::trying("level", isa_name(level));
        CHECK(FEDBENCH_DISPATCH(level, sixteen_bit_loads_agree)());
        CHECK(FEDBENCH_DISPATCH(level, byte_loads_agree)());
    }
}

TEST(every_level_has_exact_product_errors) {
    for (const IsaLevel level : available_isas()) {
        fedbench::testing::trying("level", isa_name(level));
        CHECK(FEDBENCH_DISPATCH(level, product_errors_agree)());
    }
}

TEST(masks_name_the_lanes) {
    for (const IsaLevel level : available_isas()) {
        fedbench::testing::trying("level", isa_name(level));
        CHECK(FEDBENCH_DISPATCH(level, masks_agree)());
    }
}

TEST_MAIN()

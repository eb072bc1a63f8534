// Vectors of doubles and of the narrower types beside them, per instruction set:
// fedbench::portable::f64v, fedbench::avx2::f64v, fedbench::avx512::f64v, ...
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fedbench/dtype.hpp"

#define FEDBENCH_KERNEL_FILE "fedbench/simd.inl"
#include "fedbench/foreach_isa.inl"

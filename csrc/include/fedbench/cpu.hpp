// Run-time detection of instruction sets. Builds are portable; kernels choose by these names.
#pragma once

#include <string>
#include <vector>

namespace fedbench {

// Names of the instruction sets that this processor and operating system offer.
inline std::vector<std::string> cpu_features() {
    std::vector<std::string> names;
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse2")) names.emplace_back("sse2");
    if (__builtin_cpu_supports("avx2")) names.emplace_back("avx2");
    if (__builtin_cpu_supports("fma")) names.emplace_back("fma");
    if (__builtin_cpu_supports("avx512f")) names.emplace_back("avx512f");
#endif
    return names;
}

}  // namespace fedbench

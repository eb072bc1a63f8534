// Which instruction set the kernels run on: detected and decided once per process.
//
// Every build carries every level that its compiler can produce; FEDBENCH_ISA forces a lower one.
// All levels give the same bits, so the choice is about speed alone.
#pragma once

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define FEDBENCH_X86 1
#else
#define FEDBENCH_X86 0
#endif

namespace fedbench {

enum class IsaLevel : int { portable = 0, avx2 = 1, avx512 = 2 };

inline constexpr std::array<std::string_view, 3> kIsaNames{"portable", "avx2", "avx512"};

inline std::string isa_name(IsaLevel level) {
    return std::string(kIsaNames[static_cast<std::size_t>(level)]);
}

// The best level of this processor and operating system.
inline IsaLevel detect_isa() noexcept {
#if FEDBENCH_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx2 && avx512) return IsaLevel::avx512;
    if (avx2) return IsaLevel::avx2;
#endif
    return IsaLevel::portable;
}

// The level that `requested` names, or `best` when it is empty.
// Throws std::invalid_argument for an unknown name and for a level that this machine lacks.
inline IsaLevel choose_isa(std::string_view requested, IsaLevel best) {
    if (requested.empty()) return best;
    std::string known;
    for (std::size_t i = 0; i < kIsaNames.size(); ++i) {
        if (kIsaNames[i] == requested) {
            const auto level = static_cast<IsaLevel>(i);
            if (level > best) {
                throw std::invalid_argument(
                    "FEDBENCH_ISA must be a level that this processor offers (at most '" +
                    isa_name(best) + "'), got '" + std::string(requested) +
                    "'. Unset it to use the best level.");
            }
            return level;
        }
        known += (known.empty() ? "'" : ", '") + std::string(kIsaNames[i]) + "'";
    }
    throw std::invalid_argument("FEDBENCH_ISA must be one of " + known + ", got '" +
                                std::string(requested) + "'. Unset it to use the best level.");
}

// The level in force, decided at the first call. Throws as choose_isa does.
inline IsaLevel active_isa() {
    static const IsaLevel level = [] {
        const char* requested = std::getenv("FEDBENCH_ISA");
        return choose_isa(requested == nullptr ? "" : requested, detect_isa());
    }();
    return level;
}

// Whether 512 bits of doubles are converted from floats in parts, so that halves are faster: on
// AMD. Elsewhere halves are slower: beside whole registers, one of the units that add does not take
// them.
inline bool widens_in_parts() noexcept {
#if FEDBENCH_X86
    static const bool amd = [] {
        __builtin_cpu_init();
        return __builtin_cpu_is("amd") != 0;
    }();
    return amd;
#else
    return false;
#endif
}

// The levels that this machine can run, lowest first.
inline std::vector<IsaLevel> available_isas() {
    std::vector<IsaLevel> levels;
    for (int i = 0; i <= static_cast<int>(detect_isa()); ++i) {
        levels.push_back(static_cast<IsaLevel>(i));
    }
    return levels;
}

}  // namespace fedbench

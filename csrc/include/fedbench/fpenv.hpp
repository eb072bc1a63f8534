// The floating-point environment of a computing thread.
#pragma once

#include <cfenv>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace fedbench {

// Sets round-to-nearest, no flushing of subnormals and no traps for the life of the object, then
// restores what was there. Callers may have set flush-to-zero (torch.set_flush_denormal does, per
// thread), and an exact kernel would then be wrong without a sign of it.
class FpEnvGuard {
  public:
#if defined(__x86_64__) || defined(_M_X64)
    FpEnvGuard() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(kDefaultMxcsr); }
    ~FpEnvGuard() { _mm_setcsr(saved_); }

  private:
    static constexpr unsigned kDefaultMxcsr = 0x1f80;  // all exceptions masked, nearest, no FTZ/DAZ
    unsigned saved_;
#else
    FpEnvGuard() noexcept {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~FpEnvGuard() { std::fesetenv(&saved_); }

  private:
    std::fenv_t saved_;
#endif

  public:
    FpEnvGuard(const FpEnvGuard&) = delete;
    FpEnvGuard& operator=(const FpEnvGuard&) = delete;
};

}  // namespace fedbench

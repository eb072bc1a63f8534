// The floating-point environment of a computing thread.
#pragma once

#include <cfenv>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace fedbench {

// How a thread rounds, whether it flushes subnormal numbers to zero, and what traps.
class FpEnv {
  public:
    // Round to nearest, nothing flushed, no traps.
    FpEnv() noexcept = default;

#if defined(__x86_64__) || defined(_M_X64)
    static FpEnv of_this_thread() noexcept { return FpEnv(_mm_getcsr()); }
    void set() const noexcept { _mm_setcsr(mxcsr_); }

  private:
    explicit FpEnv(unsigned mxcsr) noexcept : mxcsr_(mxcsr) {}
    unsigned mxcsr_ = 0x1f80;
#else
    static FpEnv of_this_thread() noexcept {
        FpEnv environment;
        std::fegetenv(&environment.saved_);
        environment.is_default_ = false;
        return environment;
    }
    void set() const noexcept { std::fesetenv(is_default_ ? FE_DFL_ENV : &saved_); }

  private:
    std::fenv_t saved_{};
    bool is_default_ = true;
#endif
};

// Sets an environment for the life of the object, then restores what was there. Callers may have
// set flush-to-zero (torch.set_flush_denormal does, per thread), and an exact kernel would then be
// wrong without a sign of it.
class FpEnvGuard {
  public:
    explicit FpEnvGuard(const FpEnv& wanted = FpEnv()) noexcept : saved_(FpEnv::of_this_thread()) {
        wanted.set();
    }
    ~FpEnvGuard() { saved_.set(); }
    FpEnvGuard(const FpEnvGuard&) = delete;
    FpEnvGuard& operator=(const FpEnvGuard&) = delete;

  private:
    FpEnv saved_;
};

}  // namespace fedbench

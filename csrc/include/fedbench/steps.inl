// Included by steps.hpp once per instruction set. Plain loops over a block that the compiler
// vectorises; every loop is one or two of the operations that steps.hpp lists.

namespace fedbench::FEDBENCH_ISA::steps {

// Square roots in place, of `size` rounded up to a multiple of 16 elements. The compiler would
// call the library's sqrt for the sake of errno.
inline void square_roots(float* v, std::size_t size) {
#if FEDBENCH_ISA_LEVEL >= 1
    for (std::size_t i = 0; i < size; i += 8)
        _mm256_storeu_ps(v + i, _mm256_sqrt_ps(_mm256_loadu_ps(v + i)));
#else
    for (std::size_t i = 0; i < size; ++i) v[i] = std::sqrt(v[i]);
#endif
}

inline void square_roots(double* v, std::size_t size) {
#if FEDBENCH_ISA_LEVEL >= 1
    for (std::size_t i = 0; i < size; i += 4)
        _mm256_storeu_pd(v + i, _mm256_sqrt_pd(_mm256_loadu_pd(v + i)));
#else
    for (std::size_t i = 0; i < size; ++i) v[i] = std::sqrt(v[i]);
#endif
}

template <class T>
inline void apply(const SgdStep<T>& s, std::size_t at, std::size_t size) {
    T g[kStepBlock];
    T* __restrict x = s.parameters + at;
    const T* __restrict gradient = s.gradient + at;
    for (std::size_t i = 0; i < size; ++i) g[i] = gradient[i];
    if (s.weight_decay != 0)
        for (std::size_t i = 0; i < size; ++i) g[i] = g[i] + s.weight_decay * x[i];
    if (s.anchor != nullptr) {
        const T* __restrict anchor = s.anchor + at;
        for (std::size_t i = 0; i < size; ++i) g[i] = g[i] + s.proximal * (x[i] - anchor[i]);
    }
    if (s.correction != nullptr) {
        const T* __restrict correction = s.correction + at;
        for (std::size_t i = 0; i < size; ++i) g[i] = g[i] + correction[i];
    }
    if (s.velocity != nullptr) {
        T* __restrict velocity = s.velocity + at;
        if (s.first)
            for (std::size_t i = 0; i < size; ++i) velocity[i] = g[i];
        else
            for (std::size_t i = 0; i < size; ++i) velocity[i] = s.momentum * velocity[i] + g[i];
        if (s.nesterov)
            for (std::size_t i = 0; i < size; ++i) g[i] = g[i] + s.momentum * velocity[i];
        else
            for (std::size_t i = 0; i < size; ++i) g[i] = velocity[i];
    }
    for (std::size_t i = 0; i < size; ++i) x[i] = x[i] - s.lr * g[i];
}

template <class T>
inline void apply(const FedAvgMStep<T>& s, std::size_t at, std::size_t size) {
    T step[kStepBlock];
    T* __restrict x = s.parameters + at;
    T* __restrict velocity = s.velocity + at;
    const T* __restrict update = s.update + at;
    for (std::size_t i = 0; i < size; ++i) velocity[i] = s.momentum * velocity[i] + update[i];
    if (s.nesterov)
        for (std::size_t i = 0; i < size; ++i) step[i] = s.momentum * velocity[i] + update[i];
    else
        for (std::size_t i = 0; i < size; ++i) step[i] = velocity[i];
    if (s.server_lr != 1)
        for (std::size_t i = 0; i < size; ++i) step[i] = s.server_lr * step[i];
    for (std::size_t i = 0; i < size; ++i) x[i] = x[i] + step[i];
}

template <class T>
inline void second_moments(const AdaptiveStep<T>& s, const T* __restrict m, T* __restrict v,
                           std::size_t size) {
    switch (s.kind) {
        case Adaptive::adagrad:
            for (std::size_t i = 0; i < size; ++i) v[i] = v[i] + m[i] * m[i];
            break;
        case Adaptive::yogi:
            for (std::size_t i = 0; i < size; ++i) {
                const T square = m[i] * m[i];
                const T error = v[i] - square;
                const T sign = static_cast<T>(error > 0) - static_cast<T>(error < 0);
                v[i] = v[i] - s.one_minus_beta2 * square * sign;
            }
            break;
        case Adaptive::adam:
            for (std::size_t i = 0; i < size; ++i)
                v[i] = s.beta2 * v[i] + s.one_minus_beta2 * (m[i] * m[i]);
            break;
    }
}

template <class T>
inline void apply(const AdaptiveStep<T>& s, std::size_t at, std::size_t size) {
    T root[kStepBlock] = {};
    T* __restrict x = s.parameters + at;
    T* __restrict m = s.first_moment + at;
    T* __restrict v = s.second_moment + at;
    const T* __restrict update = s.update + at;
    if (s.beta1 != 0)
        for (std::size_t i = 0; i < size; ++i)
            m[i] = s.beta1 * m[i] + s.one_minus_beta1 * update[i];
    else
        for (std::size_t i = 0; i < size; ++i) m[i] = update[i];
    second_moments(s, m, v, size);
    for (std::size_t i = 0; i < size; ++i) root[i] = v[i];
    square_roots(root, size);
    for (std::size_t i = 0; i < size; ++i) x[i] = x[i] + s.server_lr * m[i] / (root[i] + s.tau);
}

// The elements [at, at + size), at most one block, of any step.
template <class Step>
void apply_block(const Step& step, std::size_t at, std::size_t size) {
    apply(step, at, size);
}

}  // namespace fedbench::FEDBENCH_ISA::steps

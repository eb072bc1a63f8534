// Optimiser steps against the same operations one element at a time.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "buffers.hpp"
#include "check.hpp"
#include "fedbench/steps.hpp"

using namespace fedbench;
using fedbench::testing::GuardedBuffer;
using fedbench::testing::trying;

namespace {

constexpr std::size_t kSizes[] = {0, 1, 2, 7, 16, 17, 63, 1023, 1024, 1025, 300'001};

// A vector between guard bytes at an odd multiple of its element's size.
template <class T>
struct Vector {
    GuardedBuffer<T> buffer;
    Vector(std::size_t size, std::size_t shift, std::mt19937_64& random, bool positive = false)
        : buffer(size, shift * sizeof(T)) {
        std::normal_distribution<T> normal;
        for (std::size_t i = 0; i < size; ++i) {
            const T value = normal(random);
            buffer.set(i, positive ? std::abs(value) : value);
        }
    }
    T* data() { return static_cast<T*>(buffer.address()); }
    T operator[](std::size_t i) const { return buffer.get(i); }
};

template <class T>
void check_sgd(std::size_t size, unsigned terms, IsaLevel level, std::mt19937_64& random) {
    Vector<T> x(size, 1, random), g(size, 2, random), anchor(size, 3, random);
    Vector<T> correction(size, 1, random), velocity(size, 0, random);
    const bool decay = terms & 1, proximal = terms & 2, corrected = terms & 4, momentum = terms & 8;
    const bool nesterov = terms & 16, first = terms & 32;
    SgdStep<T> step{x.data(),
                    g.data(),
                    proximal ? anchor.data() : nullptr,
                    corrected ? correction.data() : nullptr,
                    momentum ? velocity.data() : nullptr,
                    T(0.1),
                    decay ? T(0.01) : T(0),
                    T(0.3),
                    T(0.9),
                    nesterov,
                    first};
    std::vector<T> expected(size), expected_velocity(size);
    for (std::size_t i = 0; i < size; ++i) {
        T d = g[i];
        if (decay) d = d + step.weight_decay * x[i];
        if (proximal) d = d + step.proximal * (x[i] - anchor[i]);
        if (corrected) d = d + correction[i];
        T v = velocity[i];
        if (momentum) {
            v = first ? d : step.momentum * v + d;
            d = nesterov ? d + step.momentum * v : v;
        }
        expected_velocity[i] = v;
        expected[i] = x[i] - step.lr * d;
    }
    apply_step(step, size, level);
    for (std::size_t i = 0; i < size; ++i) {
        CHECK_EQUAL(x[i], expected[i]);
        CHECK_EQUAL(velocity[i], expected_velocity[i]);
    }
    CHECK(x.buffer.intact() && velocity.buffer.intact() && g.buffer.intact());
}

template <class T>
void check_fedavgm(std::size_t size, bool nesterov, T lr, IsaLevel level, std::mt19937_64& random) {
    Vector<T> x(size, 1, random), update(size, 3, random), velocity(size, 2, random);
    std::vector<T> expected(size), expected_velocity(size);
    const T momentum = T(0.9);
    for (std::size_t i = 0; i < size; ++i) {
        const T v = momentum * velocity[i] + update[i];
        T step = nesterov ? momentum * v + update[i] : v;
        if (lr != 1) step = lr * step;
        expected_velocity[i] = v;
        expected[i] = x[i] + step;
    }
    apply_step(FedAvgMStep<T>{x.data(), update.data(), velocity.data(), lr, momentum, nesterov},
               size, level);
    for (std::size_t i = 0; i < size; ++i) {
        CHECK_EQUAL(x[i], expected[i]);
        CHECK_EQUAL(velocity[i], expected_velocity[i]);
    }
    CHECK(x.buffer.intact() && velocity.buffer.intact());
}

template <class T>
void check_adaptive(std::size_t size, Adaptive kind, T beta1, IsaLevel level,
                    std::mt19937_64& random) {
    Vector<T> x(size, 1, random), update(size, 3, random), m(size, 2, random),
        v(size, 0, random, true);
    const AdaptiveStep<T> s{kind,  x.data(),  update.data(), m.data(),      v.data(), T(0.1),
                            beta1, 1 - beta1, T(0.99),       T(1.0 - 0.99), T(1e-3)};
    std::vector<T> xs(size), ms(size), vs(size);
    for (std::size_t i = 0; i < size; ++i) {
        ms[i] = beta1 != 0 ? s.beta1 * m[i] + s.one_minus_beta1 * update[i] : update[i];
        const T square = ms[i] * ms[i];
        const T error = v[i] - square;
        const T sign = error > 0 ? T(1) : error < 0 ? T(-1) : T(0);
        if (kind == Adaptive::adagrad) vs[i] = v[i] + square;
        if (kind == Adaptive::yogi) vs[i] = v[i] - s.one_minus_beta2 * square * sign;
        if (kind == Adaptive::adam) vs[i] = s.beta2 * v[i] + s.one_minus_beta2 * square;
        xs[i] = x[i] + s.server_lr * ms[i] / (std::sqrt(vs[i]) + s.tau);
    }
    apply_step(s, size, level);
    for (std::size_t i = 0; i < size; ++i) {
        CHECK_EQUAL(m[i], ms[i]);
        CHECK_EQUAL(v[i], vs[i]);
        CHECK_EQUAL(x[i], xs[i]);
    }
    CHECK(x.buffer.intact() && m.buffer.intact() && v.buffer.intact());
}

template <class T>
void check_all(std::size_t size, IsaLevel level, std::mt19937_64& random) {
    trying("size", size, isa_name(level), "bytes", sizeof(T));
    for (unsigned terms = 0; terms < 64; terms += size > 2000 ? 21 : 1)
        check_sgd<T>(size, terms, level, random);
    for (const bool nesterov : {false, true})
        for (const T lr : {T(1), T(0.3)}) check_fedavgm<T>(size, nesterov, lr, level, random);
    for (const Adaptive kind : {Adaptive::adagrad, Adaptive::yogi, Adaptive::adam})
        for (const T beta1 : {T(0), T(0.9)}) check_adaptive<T>(size, kind, beta1, level, random);
}

}  // namespace

TEST(every_step_size_and_level) {
    std::mt19937_64 random(1);
    for (const std::size_t size : kSizes) {
        for (const IsaLevel level : available_isas()) {
            check_all<float>(size, level, random);
            check_all<double>(size, level, random);
        }
    }
}

TEST(yogi_keeps_a_second_moment_that_is_right) {
    for (const IsaLevel level : available_isas()) {
        float x = 0, update = 2, m = 0, v = 4;
        apply_step(
            AdaptiveStep<float>{Adaptive::yogi, &x, &update, &m, &v, 1, 0, 1, 0.99F, 0.01F, 1}, 1,
            level);
        CHECK_EQUAL(v, 4.0F);
        CHECK_EQUAL(x, 2.0F / 3.0F);
    }
}

TEST_MAIN()

// Optimiser steps on flat vectors in one pass over memory, in place.
//
// Each step performs, element by element, exactly the operations written in its comment, each
// rounded once in T and none fused; coefficients are rounded to T first. So the bits are those of
// the same sequence of whole-vector operations in numpy or torch, on every level.
#pragma once

#include <cmath>
#include <cstddef>
#include <type_traits>

#include "fedbench/isa.hpp"
#include "fedbench/parallel.hpp"

namespace fedbench {

// g = gradient
// if weight_decay: g = g + weight_decay * parameters
// if proximal:     g = g + proximal * (parameters - anchor)
// if correction:   g = g + correction
// if momentum:     velocity = momentum * velocity + g   (velocity = g at the first step)
//                  g = nesterov ? g + momentum * velocity : velocity
// parameters = parameters - lr * g
template <class T>
struct SgdStep {
    T* parameters;
    const T* gradient;
    const T* anchor;      // null without a proximal term
    const T* correction;  // null without one
    T* velocity;          // null without momentum
    T lr;
    T weight_decay;
    T proximal;
    T momentum;
    bool nesterov;
    bool first;
};

// velocity = momentum * velocity + update
// step = nesterov ? momentum * velocity + update : velocity
// if server_lr is not one: step = server_lr * step
// parameters = parameters + step
template <class T>
struct FedAvgMStep {
    T* parameters;
    const T* update;
    T* velocity;
    T server_lr;
    T momentum;
    bool nesterov;
};

enum class Adaptive { adagrad, yogi, adam };

// m = beta1 * m + (1 - beta1) * update        (m = update if beta1 is zero)
// s = m * m
// adagrad: v = v + s
// yogi:    v = v - (1 - beta2) * s * sign(v - s)
// adam:    v = beta2 * v + (1 - beta2) * s
// parameters = parameters + server_lr * m / (sqrt(v) + tau)
template <class T>
struct AdaptiveStep {
    Adaptive kind;
    T* parameters;
    const T* update;
    T* first_moment;
    T* second_moment;
    T server_lr;
    T beta1;
    T one_minus_beta1;  // rounded from the difference, not the difference of the rounded
    T beta2;
    T one_minus_beta2;
    T tau;
};

// Elements that stay in the first-level cache between the operations of a step.
inline constexpr std::size_t kStepBlock = 1024;

}  // namespace fedbench

#define FEDBENCH_KERNEL_FILE "fedbench/steps.inl"
#include "fedbench/foreach_isa.inl"

namespace fedbench {

// Applies a step to `size` elements, split over threads. The vectors may not overlap.
template <class Step>
void apply_step(const Step& step, std::size_t size, IsaLevel isa = active_isa()) {
    const auto kernel = FEDBENCH_DISPATCH(isa, steps::apply_block<Step>);
    const std::size_t traffic = size * sizeof(*step.parameters) * 4;
    parallel_for(size, kStepBlock, traffic, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; i += kStepBlock)
            kernel(step, i, end - i < kStepBlock ? end - i : kStepBlock);
    });
}

}  // namespace fedbench

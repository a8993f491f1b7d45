// Updates and predictions of the weights, in one pass over flat arrays.
//
// The scalars that change from step to step are read from the array `scalars`, or if it is null from the arguments
// after it: a replayed launch repeats its arguments, but reads memory anew.

__device__ inline REAL scalar(const REAL* scalars, int place, double given) {
    return scalars ? scalars[place] : static_cast<REAL>(given);
}

// v = momentum v + gain g; out = w - rate (g + momentum v, if nesterov, else v), with the decayed gradient as g.
// Without velocity out = w - rate g. scalars: rate.
KERNEL sgd_update(
    const REAL* weights, const REAL* gradient, REAL* velocity, REAL* out, Index n, double momentum, double gain,
    Index nesterov, double weight_decay, const REAL* scalars, double rate) {
    const REAL mu = static_cast<REAL>(momentum), factor = static_cast<REAL>(gain);
    const REAL decay = static_cast<REAL>(weight_decay), step = scalar(scalars, 0, rate);
    for_each(n, aligned(weights, gradient, velocity, out), [=](auto chunk, Index i) {
        auto w = load<decltype(chunk)>(weights, i);
        auto g = load<decltype(chunk)>(gradient, i);
        for (int k = 0; k < chunk.count; ++k) g.at[k] += decay * w.at[k];
        if (velocity) {
            auto v = load<decltype(chunk)>(velocity, i);
            for (int k = 0; k < chunk.count; ++k) {
                v.at[k] = mu * v.at[k] + factor * g.at[k];
                g.at[k] = nesterov ? g.at[k] + mu * v.at[k] : v.at[k];
            }
            store(velocity, i, v);
        }
        for (int k = 0; k < chunk.count; ++k) w.at[k] -= step * g.at[k];
        store(out, i, w);
    });
}

// Kingma and Ba 2015, Algorithm 1; weight_decay is added to the gradient. With decoupled decay the weights are first
// multiplied by keep = 1 - rate * decay (Loshchilov and Hutter 2019). scalars: step_size, root_correction, keep.
KERNEL adam_update(
    const REAL* weights, const REAL* gradient, REAL* first, REAL* second, REAL* out, Index n, double beta1,
    double beta2, double eps, double weight_decay, const REAL* scalars, double step_size, double root_correction,
    double keep) {
    const REAL b1 = static_cast<REAL>(beta1), rest1 = static_cast<REAL>(1 - beta1);
    const REAL b2 = static_cast<REAL>(beta2), rest2 = static_cast<REAL>(1 - beta2);
    const REAL small = static_cast<REAL>(eps), decay = static_cast<REAL>(weight_decay);
    const REAL step = scalar(scalars, 0, step_size);
    const REAL correction = scalar(scalars, 1, root_correction);
    const REAL kept = scalar(scalars, 2, keep);
    for_each(n, aligned(weights, gradient, first, second, out), [=](auto chunk, Index i) {
        auto w = load<decltype(chunk)>(weights, i);
        const auto g = load<decltype(chunk)>(gradient, i);
        auto m = load<decltype(chunk)>(first, i);
        auto v = load<decltype(chunk)>(second, i);
        for (int k = 0; k < chunk.count; ++k) {
            const REAL slope = g.at[k] + decay * w.at[k];
            m.at[k] = b1 * m.at[k] + rest1 * slope;
            v.at[k] = b2 * v.at[k] + rest2 * (slope * slope);
            w.at[k] = kept * w.at[k] - step * (m.at[k] / (sqrt(v.at[k]) / correction + small));
        }
        store(first, i, m);
        store(second, i, v);
        store(out, i, w);
    });
}

// s = alpha s + (1 - alpha) g^2; out = w - rate g / (sqrt(s) + eps). scalars: rate.
KERNEL rmsprop_update(
    const REAL* weights, const REAL* gradient, REAL* square, REAL* out, Index n, double alpha, double eps,
    const REAL* scalars, double rate) {
    const REAL kept = static_cast<REAL>(alpha), rest = static_cast<REAL>(1 - alpha), small = static_cast<REAL>(eps);
    const REAL step = scalar(scalars, 0, rate);
    for_each(n, aligned(weights, gradient, square, out), [=](auto chunk, Index i) {
        auto w = load<decltype(chunk)>(weights, i);
        const auto g = load<decltype(chunk)>(gradient, i);
        auto s = load<decltype(chunk)>(square, i);
        for (int k = 0; k < chunk.count; ++k) {
            s.at[k] = kept * s.at[k] + rest * (g.at[k] * g.at[k]);
            w.at[k] -= step * (g.at[k] / (sqrt(s.at[k]) + small));
        }
        store(square, i, s);
        store(out, i, w);
    });
}

// Adam's moments; out = keep w - (of_gradient g + of_first m) / (sqrt(v) / root + eps). scalars: those four.
KERNEL nadam_update(
    const REAL* weights, const REAL* gradient, REAL* first, REAL* second, REAL* out, Index n, double beta1,
    double beta2, double eps, const REAL* scalars, double of_gradient, double of_first, double root, double keep) {
    const REAL b1 = static_cast<REAL>(beta1), rest1 = static_cast<REAL>(1 - beta1);
    const REAL b2 = static_cast<REAL>(beta2), rest2 = static_cast<REAL>(1 - beta2), small = static_cast<REAL>(eps);
    const REAL along_g = scalar(scalars, 0, of_gradient), along_m = scalar(scalars, 1, of_first);
    const REAL correction = scalar(scalars, 2, root), kept = scalar(scalars, 3, keep);
    for_each(n, aligned(weights, gradient, first, second, out), [=](auto chunk, Index i) {
        auto w = load<decltype(chunk)>(weights, i);
        const auto g = load<decltype(chunk)>(gradient, i);
        auto m = load<decltype(chunk)>(first, i);
        auto v = load<decltype(chunk)>(second, i);
        for (int k = 0; k < chunk.count; ++k) {
            m.at[k] = b1 * m.at[k] + rest1 * g.at[k];
            v.at[k] = b2 * v.at[k] + rest2 * (g.at[k] * g.at[k]);
            const REAL direction = along_g * g.at[k] + along_m * m.at[k];
            w.at[k] = kept * w.at[k] - direction / (sqrt(v.at[k]) / correction + small);
        }
        store(first, i, m);
        store(second, i, v);
        store(out, i, w);
    });
}

// v = momentum v + g; out = w - (of_velocity v + of_gradient g). scalars: those two.
KERNEL spike_update(
    const REAL* weights, const REAL* gradient, REAL* velocity, REAL* out, Index n, double momentum,
    const REAL* scalars, double of_velocity, double of_gradient) {
    const REAL mu = static_cast<REAL>(momentum);
    const REAL along_v = scalar(scalars, 0, of_velocity), along_g = scalar(scalars, 1, of_gradient);
    for_each(n, aligned(weights, gradient, velocity, out), [=](auto chunk, Index i) {
        auto w = load<decltype(chunk)>(weights, i);
        const auto g = load<decltype(chunk)>(gradient, i);
        auto v = load<decltype(chunk)>(velocity, i);
        for (int k = 0; k < chunk.count; ++k) {
            v.at[k] = mu * v.at[k] + g.at[k];
            w.at[k] -= along_v * v.at[k] + along_g * g.at[k];
        }
        store(velocity, i, v);
        store(out, i, w);
    });
}

// out = w - distance v.
KERNEL sgd_prediction(const REAL* weights, const REAL* velocity, REAL* out, Index n, double distance) {
    const REAL step = static_cast<REAL>(distance);
    for_each(n, aligned(weights, velocity, out), [=](auto chunk, Index i) {
        chunk = load<decltype(chunk)>(weights, i);
        const auto v = load<decltype(chunk)>(velocity, i);
        for (int k = 0; k < chunk.count; ++k) chunk.at[k] -= step * v.at[k];
        store(out, i, chunk);
    });
}

// Along Adam's last direction.
KERNEL adam_prediction(
    const REAL* weights, const REAL* first, const REAL* second, REAL* out, Index n, double eps, double step_size,
    double root_correction) {
    const REAL small = static_cast<REAL>(eps), step = static_cast<REAL>(step_size);
    const REAL correction = static_cast<REAL>(root_correction);
    for_each(n, aligned(weights, first, second, out), [=](auto chunk, Index i) {
        chunk = load<decltype(chunk)>(weights, i);
        const auto m = load<decltype(chunk)>(first, i);
        const auto v = load<decltype(chunk)>(second, i);
        for (int k = 0; k < chunk.count; ++k) {
            chunk.at[k] -= step * (m.at[k] / (sqrt(v.at[k]) / correction + small));
        }
        store(out, i, chunk);
    });
}

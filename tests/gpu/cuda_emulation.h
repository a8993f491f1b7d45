// Enough of CUDA to run kernels on a processor, a block at a time. Every thread of a block is a fiber that runs until
// it meets others: lanes of a warp in a shuffle, threads of a block at a barrier. What would hang or is not allowed on
// a device is an error here: a meeting to which somebody does not come, a block or a grid that is too large.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)

using std::exp, std::expm1, std::log, std::nan, std::sqrt, std::tanh;

namespace emulation {

struct Size {
    unsigned x = 1, y = 1, z = 1;
    unsigned count() const { return x * y * z; }
    Size place(unsigned i) const { return {i % x, i / x % y, i / x / y}; }
};

enum class State { ready, at_warp, at_block, finished };

struct Fiber {
    ucontext_t context;
    State state;
};

constexpr unsigned WARP_LANES = 32, MOST_THREADS = 256, MOST_ALONG_Y = 65535;
constexpr std::size_t STACK = 1 << 16;
enum Outcome { done = 0, hangs = 1, too_large = 2 };

inline bool reversed = false;  // blocks and threads from the last to the first: results must not depend on it
inline Size grid, block, block_index, thread_index;
inline unsigned running;
inline Fiber fibers[MOST_THREADS];
inline ucontext_t scheduler;
inline unsigned long long lanes[MOST_THREADS];
inline void (*body)(void*);
inline void* argument;

inline void meet(State where) {
    const unsigned self = running;
    fibers[self].state = where;
    swapcontext(&fibers[self].context, &scheduler);
    running = self;
    thread_index = block.place(self);
}

inline void run_fiber() {
    body(argument);
    fibers[running].state = State::finished;
}

// Lets those go on who have all come to the same place; false if there is nobody.
inline bool release(unsigned first, unsigned count, State where) {
    for (unsigned i = first; i < first + count; ++i) {
        if (fibers[i].state != where) return false;
    }
    for (unsigned i = first; i < first + count; ++i) fibers[i].state = State::ready;
    return true;
}

inline bool all_finished(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) {
        if (fibers[i].state != State::finished) return false;
    }
    return true;
}

inline void run_lanes(unsigned first, unsigned count) {
    for (unsigned step = 0; step < count; ++step) {
        const unsigned i = first + (reversed ? count - 1 - step : step);
        if (fibers[i].state != State::ready) continue;
        running = i;
        thread_index = block.place(i);
        swapcontext(&scheduler, &fibers[i].context);
    }
}

// A warp runs as far as it can before the next one begins, so that a barrier that is missing shows.
inline bool run_block(unsigned threads) {
    static std::unique_ptr<char[]> stacks(new char[MOST_THREADS * STACK]);
    for (unsigned i = 0; i < threads; ++i) {
        getcontext(&fibers[i].context);
        fibers[i].context.uc_stack.ss_sp = stacks.get() + i * STACK;
        fibers[i].context.uc_stack.ss_size = STACK;
        fibers[i].context.uc_link = &scheduler;
        fibers[i].state = State::ready;
        makecontext(&fibers[i].context, run_fiber, 0);
    }
    const unsigned warps = (threads + WARP_LANES - 1) / WARP_LANES;
    while (!all_finished(threads)) {
        for (unsigned step = 0; step < warps; ++step) {
            const unsigned first = (reversed ? warps - 1 - step : step) * WARP_LANES;
            const unsigned lanes_here = threads - first < WARP_LANES ? threads - first : WARP_LANES;
            do run_lanes(first, lanes_here);
            while (lanes_here == WARP_LANES && release(first, WARP_LANES, State::at_warp));
        }
        if (!release(0, threads, State::at_block) && !all_finished(threads)) return false;
    }
    return true;
}

inline Outcome run_grid() {
    if (block.count() > MOST_THREADS || grid.y > MOST_ALONG_Y || grid.z > MOST_ALONG_Y) return too_large;
    for (unsigned i = 0; i < grid.count(); ++i) {
        block_index = grid.place(reversed ? grid.count() - 1 - i : i);
        if (!run_block(block.count())) return hangs;
    }
    return done;
}

// `arguments` are addresses of the arguments, as a driver takes them.
template <class... Arguments>
int launch(void (*kernel)(Arguments...), const unsigned* blocks, const unsigned* threads, void** arguments) {
    using Values = std::tuple<Arguments...>;
    auto values = [&]<std::size_t... I>(std::index_sequence<I...>) {
        return Values{*static_cast<std::tuple_element_t<I, Values>*>(arguments[I])...};
    }(std::index_sequence_for<Arguments...>());
    auto call = std::make_pair(kernel, values);
    grid = {blocks[0], blocks[1], blocks[2]};
    block = {threads[0], threads[1], threads[2]};
    body = [](void* pair) {
        auto& [function, given] = *static_cast<decltype(call)*>(pair);
        std::apply(function, given);
    };
    argument = &call;
    return run_grid();
}

// A letter per argument: p for a pointer, l for long long, d for double, ? for anything else.
template <class... Arguments>
const char* kinds(void (*)(Arguments...)) {
    static const std::string letters = {(std::is_pointer_v<Arguments>                  ? 'p'
                                         : std::is_same_v<Arguments, long long> ? 'l'
                                         : std::is_same_v<Arguments, double>    ? 'd'
                                                                                : '?')...};
    return letters.c_str();
}

}  // namespace emulation

inline const emulation::Size &threadIdx = emulation::thread_index, &blockIdx = emulation::block_index;
inline const emulation::Size &blockDim = emulation::block, &gridDim = emulation::grid;

inline void __syncthreads() { emulation::meet(emulation::State::at_block); }
inline void __threadfence() {}

inline unsigned atomicAdd(unsigned* address, unsigned value) {
    const unsigned before = *address;
    *address += value;
    return before;
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
    const unsigned self = emulation::running;
    std::memcpy(&emulation::lanes[self], &value, sizeof(T));
    emulation::meet(emulation::State::at_warp);
    T other;
    std::memcpy(&other, &emulation::lanes[self ^ distance], sizeof(T));
    emulation::meet(emulation::State::at_warp);  // everybody has read before anybody writes again
    return other;
}

extern "C" void set_reversed(int value) { emulation::reversed = value; }

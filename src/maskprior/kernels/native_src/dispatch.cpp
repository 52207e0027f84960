// The exported functions: the choice of the instruction set, and threads over items and heads.
//
// Every thread takes one contiguous range of the pairs of item and head, so the result does not depend on
// timing. A small bias stays in the cache whatever the order, and then items come first, whose heads lie side
// by side in memory; else heads come first, so that one head's bias and its gradient are used again and again.
// What a thread may not add to the bias gradient itself it adds to a buffer of its own ("partial"), and those
// are added in the order of the threads.

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <atomic>
#include <thread>
#include <vector>

#include "interface.h"

namespace {

constexpr int64_t SMALL_BIAS = 1 << 17;  // floats, of all heads together

const MaskpriorKernels &kernels(int64_t level) {
#if defined(MASKPRIOR_X86)
    if (level == 2) return maskprior_avx512;
    if (level == 1) return maskprior_avx2;
#endif
    (void)level;
    return maskprior_portable;
}

struct Job {
    void (*run)(void *, int64_t);
    void *context;
    int64_t parts;
    std::atomic<int64_t> next;
};

void work(void *data) {
    Job &job = *(Job *)data;
    for (int64_t part; (part = job.next.fetch_add(1)) < job.parts;) job.run(job.context, part);
}

// The OpenMP threads that PyTorch has started, where it has: a second pool beside them would compete with them.
typedef void Fork(void (*)(void *), void *, unsigned, unsigned);
Fork *openmp() {
    static Fork *const fork = (Fork *)dlsym(RTLD_DEFAULT, "GOMP_parallel");
    return fork;
}

void parallel(int64_t parts, void (*run)(void *, int64_t), void *context) {
    Job job{run, context, parts, {0}};
    if (parts == 1) return work(&job);
    if (openmp()) return openmp()(work, &job, (unsigned)parts, 0);
    std::vector<std::thread> team;
    for (int64_t i = 1; i < parts; ++i) team.emplace_back(work, &job);
    work(&job);
    for (std::thread &member : team) member.join();
}

// Uninitialised floats at a multiple of 64 bytes.
struct Memory {
    float *data;
    explicit Memory(size_t floats) : data(nullptr) {
        if (posix_memalign((void **)&data, 64, floats * sizeof(float) + 64) != 0) data = nullptr;
    }
    ~Memory() { free(data); }
    Memory(const Memory &) = delete;
};

enum Status : int { FINE = 0, INFINITE_SCORE = 1, OUT_OF_MEMORY = 2 };

// The pairs of item and head and their division into parts, one per thread.
struct Run {
    const MaskpriorCall &call;
    const int64_t heads;
    const bool items_first;
    int64_t parts;
    std::atomic<int> status;
    std::vector<float *> partial;  // by part, or null where it has none

    Run(const MaskpriorCall &call, int64_t heads)
        : call(call), heads(heads),
          items_first(call.bias_heads * call.queries * call.keys <= SMALL_BIAS && call.batch >= call.threads),
          parts(call.threads < call.batch * heads ? call.threads : call.batch * heads), status(FINE) {
        partial.assign(parts, nullptr);
    }

    int64_t start(int64_t part) const {
        return items_first ? call.batch * part / parts * heads : call.batch * heads * part / parts;
    }
    MaskpriorPair pair(int64_t index) const {
        if (items_first) return {index / heads, index % heads};
        return {index % call.batch, index / call.batch};
    }

    bool is_shared() const { return call.bias_heads == 1; }
    // Floats of the bias gradient that one key head adds to.
    int64_t plane() const { return (is_shared() ? 1 : call.heads / call.kv_heads) * call.queries * call.keys; }
    int64_t offset(int64_t head) const { return is_shared() ? 0 : head * plane(); }

    // A part needs a buffer if another one sets what it adds to.
    bool needs_partial(int64_t part) const {
        return part > 0 && (items_first || is_shared() || pair(start(part)).item > 0);
    }
    int64_t partial_floats() const { return items_first ? call.bias_heads * call.queries * call.keys : plane(); }
    float *target(int64_t part, int64_t head) const {
        float *mine = partial[part];
        if (mine && items_first) return mine + offset(head);
        if (mine && (is_shared() || head == pair(start(part)).head)) return mine;
        return call.grad_bias + offset(head);
    }
    // Whether the pair is the first that writes to its target.
    bool is_first(int64_t part, int64_t index) const {
        if (is_shared()) return index == start(part);
        if (items_first) return pair(index).item == pair(start(part)).item;
        return index == start(part) || pair(index).item == 0;
    }
};

void forward_part(void *context, int64_t part) {
    Run &run = *(Run *)context;
    const MaskpriorKernels &k = kernels(run.call.level);
    Memory memory(k.forward_scratch(run.call));
    if (!memory.data) return run.status.store(OUT_OF_MEMORY);
    for (int64_t i = run.start(part), end = run.start(part + 1); i < end; ++i)
        if (k.forward(run.call, run.pair(i), run.pair(i + 1 < end ? i + 1 : i), memory.data))
            run.status.store(INFINITE_SCORE);
}

void backward_part(void *context, int64_t part) {
    Run &run = *(Run *)context;
    const MaskpriorKernels &k = kernels(run.call.level);
    Memory memory(k.backward_scratch(run.call));
    if (!memory.data) return run.status.store(OUT_OF_MEMORY);
    for (int64_t i = run.start(part), end = run.start(part + 1); i < end; ++i) {
        MaskpriorPair pair = run.pair(i);
        float *grad_bias = run.call.needs_bias ? run.target(part, pair.head) : nullptr;
        k.backward(run.call, pair, run.pair(i + 1 < end ? i + 1 : i), grad_bias, run.is_first(part, i), memory.data);
    }
}

// Add the partial gradients, each part its share of the numbers.
void reduce_part(void *context, int64_t part) {
    Run &run = *(Run *)context;
    int64_t floats = run.partial_floats(), from = floats * part / run.parts, to = floats * (part + 1) / run.parts;
    for (int64_t other = 1; other < run.parts; ++other) {
        const float *mine = run.partial[other];
        if (!mine) continue;
        float *total = run.call.grad_bias + (run.items_first ? 0 : run.offset(run.pair(run.start(other)).head));
        for (int64_t i = from; i < to; ++i) total[i] += mine[i];
    }
}

// log sigma of the numbers [count * part / parts, count * (part + 1) / parts).
struct Elementwise {
    const float *logits, *gradient;
    float *result;
    int64_t count, parts, level;
};

void log_sigmoid_part(void *context, int64_t part) {
    const Elementwise &e = *(Elementwise *)context;
    int64_t from = e.count * part / e.parts, to = e.count * (part + 1) / e.parts;
    kernels(e.level).log_sigmoid(e.logits + from, e.gradient ? e.gradient + from : nullptr, e.result + from, to - from);
}

}  // namespace

extern "C" {

// What the caller checks before anything else: that it packs the same struct.
int maskprior_call_size() { return (int)sizeof(MaskpriorCall); }

// Highest instruction set of this machine that the library has: 0 portable, 1 AVX2 with FMA, 2 AVX-512.
int maskprior_level() {
#if defined(MASKPRIOR_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

// 1 if the threads are those of the OpenMP library that the process has loaded, 0 if new ones are started.
int maskprior_shares_threads() { return openmp() != nullptr; }

// Ask for large pages where they hold fresh memory: a gradient of N^2 numbers is thousands of small ones, and
// each costs more than the arithmetic on it. Only a hint.
void maskprior_prefer_large_pages(void *data, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096, begin = ((uintptr_t)data + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)data + (uintptr_t)bytes) / page * page;
    if (end > begin) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

// log sigma(logits), or with a gradient, gradient * sigma(-logits).
void maskprior_log_sigmoid(const float *logits, const float *gradient, float *result, int64_t count, int64_t threads,
                           int64_t level) {
    const int64_t worthwhile = 1 << 14;  // numbers for one more thread
    int64_t parts = count / worthwhile < threads ? count / worthwhile : threads;
    Elementwise e = {logits, gradient, result, count, parts > 1 ? parts : 1, level};
    parallel(e.parts, log_sigmoid_part, &e);
}

int maskprior_forward(const MaskpriorCall *call) {
    Run run(*call, call->heads);
    parallel(run.parts, forward_part, &run);
    return run.status.load();
}

int maskprior_backward(const MaskpriorCall *call) {
    Run run(*call, call->kv_heads);
    std::vector<Memory *> buffers;
    for (int64_t part = 1; call->needs_bias && part < run.parts; ++part) {
        if (!run.needs_partial(part)) continue;
        buffers.push_back(new Memory((size_t)run.partial_floats()));
        run.partial[part] = buffers.back()->data;
        if (!run.partial[part]) run.status.store(OUT_OF_MEMORY);
    }
    if (run.status.load() == FINE) parallel(run.parts, backward_part, &run);
    if (run.status.load() == FINE && !buffers.empty()) parallel(run.parts, reduce_part, &run);
    for (Memory *buffer : buffers) delete buffer;
    return run.status.load();
}
}

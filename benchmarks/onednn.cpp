// onednn.cpp: oneDNN's batch normalization as a peer, behind five C functions.
//
// Compiled by benchmarks/compiled.py against libdnnl 3. `layout` is 0 for channels last, 1 for
// channels first, 2 for oneDNN's own blocks of 16 channels; blocked tensors are oneDNN's, filled
// once from channels-first ones.
#include <omp.h>

#include <cstdint>
#include <dnnl.hpp>
#include <memory>
#include <unordered_map>
#include <vector>

using namespace dnnl;

namespace {

struct Call {
    engine eng{engine::kind::cpu, 0};
    stream s{eng};
    primitive work;
    std::unordered_map<int, memory> arguments;
};

memory::format_tag tag_of(int layout, size_t ndims) {
    using tag = memory::format_tag;
    static const tag tags[3][4] = {{tag::nc, tag::nwc, tag::nhwc, tag::ndhwc},
                                   {tag::nc, tag::ncw, tag::nchw, tag::ncdhw},
                                   {tag::undef, tag::nCw16c, tag::nChw16c, tag::nCdhw16c}};
    return tags[layout][ndims - 2];
}

} // namespace

enum { BACKWARD, FROZEN, TRAINING, INFERENCE };

// data: src, diff_dst, diff_src; for TRAINING and INFERENCE, src, dst. vectors: mean, variance,
// gamma; then diff_gamma and diff_beta, or beta. Returns NULL if oneDNN has no such implementation.
extern "C" void *bn_new(int ndims, const int64_t *dims_, int layout, int dtype, void **data,
                        float **vectors, float epsilon, int op, int threads) try {
    omp_set_num_threads(threads);
    const memory::data_type types[] = {memory::data_type::f32, memory::data_type::bf16,
                                       memory::data_type::f16};
    const memory::dims dims(dims_, dims_ + ndims);
    const memory::desc md(dims, types[dtype], tag_of(layout, dims.size()));
    const bool is_backward = op == BACKWARD || op == FROZEN;
    const auto kind = op == INFERENCE ? prop_kind::forward_inference : prop_kind::forward_training;
    auto flags = normalization_flags::use_scale | normalization_flags::use_shift;
    if (op == FROZEN || op == INFERENCE)
        flags |= normalization_flags::use_global_stats;

    auto c = std::make_unique<Call>();
    const auto forward =
        batch_normalization_forward::primitive_desc(c->eng, kind, md, md, epsilon, flags);
    if (is_backward) {
        const auto backward = batch_normalization_backward::primitive_desc(
            c->eng, prop_kind::backward, md, md, md, epsilon, flags, forward);
        c->work = batch_normalization_backward(backward);
    } else {
        c->work = batch_normalization_forward(forward);
    }

    const std::vector<int> names =
        is_backward ? std::vector<int>{DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC}
                    : std::vector<int>{DNNL_ARG_SRC, DNNL_ARG_DST};
    for (size_t i = 0; i < names.size(); i++) {
        const memory::desc plain(dims, types[dtype], tag_of(layout == 2 ? 1 : layout, dims.size()));
        memory given(plain, c->eng, data[i]);
        if (layout == 2) {
            memory blocked(md, c->eng);
            reorder(given, blocked).execute(c->s, given, blocked);
            c->s.wait();
            given = blocked;
        }
        c->arguments.insert({names[i], given});
    }
    const std::vector<int> vector_names =
        is_backward
            ? std::vector<int>{DNNL_ARG_MEAN, DNNL_ARG_VARIANCE, DNNL_ARG_SCALE,
                               DNNL_ARG_DIFF_SCALE, DNNL_ARG_DIFF_SHIFT}
            : std::vector<int>{DNNL_ARG_MEAN, DNNL_ARG_VARIANCE, DNNL_ARG_SCALE, DNNL_ARG_SHIFT};
    const memory::desc vector({dims[1]}, memory::data_type::f32, memory::format_tag::x);
    for (size_t i = 0; i < vector_names.size(); i++)
        c->arguments.insert({vector_names[i], memory(vector, c->eng, vectors[i])});
    c->work.execute(c->s, c->arguments);
    c->s.wait();
    return c.release();
} catch (const dnnl::error &) {
    return nullptr;
}

extern "C" void bn_run(void *call) {
    auto *c = static_cast<Call *>(call);
    c->work.execute(c->s, c->arguments);
    c->s.wait();
}

extern "C" void bn_free(void *call) {
    delete static_cast<Call *>(call);
}

extern "C" void bn_version(int *version) {
    version[0] = dnnl_version()->major;
    version[1] = dnnl_version()->minor;
    version[2] = dnnl_version()->patch;
}

// Does omp_set_num_threads set oneDNN's number of threads?
extern "C" bool bn_has_openmp() {
    return DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP;
}

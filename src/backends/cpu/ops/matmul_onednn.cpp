#include "backends/cpu/ops/matmul_onednn.h"

#include <fmt/core.h>

#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

#include "backends/cpu/ops/scratch.h"
#include "tessera/error.h"

// oneDNN is built on an OpenMP runtime that this project does not link by itself; null if it is built on
// another.
extern "C" {
int omp_get_max_threads() __attribute__((weak));
void omp_set_num_threads(int) __attribute__((weak));
}

namespace tessera::cpu {
namespace {

using dnnl::memory;

/// Keeps oneDNN on the calling thread, which is already one of the threads that share the work; a second pool
/// would fight with the first. The setting is the thread's own.
class SingleThreadScope {
 public:
  SingleThreadScope() {
    if (omp_set_num_threads == nullptr || omp_get_max_threads == nullptr) return;
    before_ = omp_get_max_threads();
    omp_set_num_threads(1);
  }
  ~SingleThreadScope() {
    if (before_ > 0) omp_set_num_threads(before_);
  }
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  int before_ = 0;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// A generated kernel. Running it changes nothing in it: its scratch memory comes from the caller.
struct Kernel {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
};

std::shared_ptr<const Kernel> make_kernel(const OneDnnMatmul& p) {
  const memory::data_type type = p.dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc a({p.m, p.k}, type, memory::dims{p.k, 1});
  const memory::desc b({p.k, p.n}, type, memory::dims{1, p.k});
  const memory::desc c({p.m, p.n}, memory::data_type::f32, memory::dims{p.c_stride, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::primitive_desc description({a, b, c}, attributes, cpu_engine());
  return std::make_shared<const Kernel>(Kernel{description, dnnl::matmul(description)});
}

/// Making a kernel takes about 0.2 ms, as long as running a small one.
std::shared_ptr<const Kernel> find_kernel(const OneDnnMatmul& p) {
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, DType, std::int64_t>;
  constexpr std::size_t kMostKernels =
      256;  // a model has about ten shapes for each length of a prompt's rest
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const Kernel>> kernels;
  const Key key{p.m, p.n, p.k, p.dtype, p.c_stride};
  const std::lock_guard lock(mutex);
  if (const auto found = kernels.find(key); found != kernels.end()) return found->second;
  if (kernels.size() >= kMostKernels) kernels.clear();
  return kernels.emplace(key, make_kernel(p)).first->second;
}

}  // namespace

void matmul_onednn(const OneDnnMatmul& p) {
  const SingleThreadScope single_thread;
  try {
    const std::shared_ptr<const Kernel> kernel = find_kernel(p);
    const dnnl::matmul::primitive_desc& d = kernel->description;
    const Scratch scratch(d.scratchpad_desc().get_size(), "a matrix product");
    dnnl::stream stream(cpu_engine());
    // oneDNN's memory objects have no const; it reads a and b only.
    kernel->primitive.execute(
        stream, {{DNNL_ARG_SRC, memory(d.src_desc(), cpu_engine(), const_cast<void*>(p.a))},
                 {DNNL_ARG_WEIGHTS, memory(d.weights_desc(), cpu_engine(), const_cast<void*>(p.b))},
                 {DNNL_ARG_DST, memory(d.dst_desc(), cpu_engine(), p.c)},
                 {DNNL_ARG_SCRATCHPAD, memory(d.scratchpad_desc(), cpu_engine(), scratch.data())}});
    stream.wait();
  } catch (const dnnl::error& error) {
    throw Error(ErrorCode::kDevice, fmt::format("oneDNN can't multiply ({} x {}) by ({} x {}) in {}: {}", p.m,
                                                p.k, p.k, p.n, dtype_name(p.dtype), error.what()));
  }
}

}  // namespace tessera::cpu

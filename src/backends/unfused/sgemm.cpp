#include "backends/unfused/sgemm.h"

#include <dnnl.h>
#include <fmt/core.h>

#include "tessera/error.h"

// oneDNN runs on the OpenMP threads of libgomp. Declared here, since <omp.h> comes with one compiler only.
extern "C" int omp_get_max_threads(void);
extern "C" void omp_set_num_threads(int);

namespace tessera::unfused {
namespace {

/// Keeps oneDNN on the calling thread: parallel_for already spreads the work, and a second pool of threads
/// would compete with it. The setting is the calling thread's own.
class SingleThreaded {
 public:
  SingleThreaded() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThreaded() { omp_set_num_threads(before_); }
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int before_;
};

void sgemm(char transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, ConstMatrix a, ConstMatrix b,
           Matrix c) {
  if (m == 0 || n == 0) return;
  const SingleThreaded single_threaded;
  const dnnl_status_t status =
      dnnl_sgemm('N', transpose_b, m, n, k, 1.0f, a.data, a.stride, b.data, b.stride, 0.0f, c.data, c.stride);
  if (status != dnnl_success) {
    throw Error(ErrorCode::kDevice,
                fmt::format("oneDNN's matrix product of {} x {} x {} failed with status {}", m, n, k,
                            static_cast<int>(status)));
  }
}

}  // namespace

void sgemm_nt(std::int64_t m, std::int64_t n, std::int64_t k, ConstMatrix a, ConstMatrix b, Matrix c) {
  sgemm('T', m, n, k, a, b, c);
}

void sgemm_nn(std::int64_t m, std::int64_t n, std::int64_t k, ConstMatrix a, ConstMatrix b, Matrix c) {
  sgemm('N', m, n, k, a, b, c);
}

}  // namespace tessera::unfused

#include "verify/verify.h"

#include <fmt/core.h>

#include "c_api/status.h"
#include "c_api/structs.h"
#include "verify/memory/backend_memory.h"

namespace tessera::c_api {
namespace {

tessera_verify_result c_result(const VerifyResult& r) {
  tessera_verify_result out{};
  out.struct_size = sizeof(out);
  out.name = r.name.c_str();
  out.backend = r.backend.c_str();
  out.kernel = r.kernel.c_str();
  out.error = r.error;
  out.bound = r.bound;
  out.lse_error = r.lse_error;
  out.lse_bound = r.lse_bound;
  out.passed = r.passed ? 1 : 0;
  out.unsupported_reason = r.unsupported_reason.c_str();
  out.message = r.message.c_str();
  return out;
}

void count(const VerifyResult& result, tessera_verify_counts& counts) {
  if (!result.passed) {
    ++counts.failed;
  } else if (result.unsupported_reason.empty()) {
    ++counts.passed;
  } else {
    ++counts.unsupported;
  }
}

}  // namespace
}  // namespace tessera::c_api

using namespace tessera::c_api;

extern "C" tessera_status tessera_verify(const tessera_verify_options* options,
                                         tessera_verify_counts* counts) {
  return guarded([&] {
    const tessera_verify_options c = read_optional_struct(options, "options");
    check_reserved("options", c.reserved);
    tessera::VerifyOptions verify;
    verify.quick = c.quick != 0;
    if (c.filter != nullptr) verify.filter = c.filter;
    tessera_verify_counts sums{};
    write_struct(counts, sums, "counts");
    const auto on_result = [&](const tessera::VerifyResult& result) {
      count(result, sums);
      write_struct(counts, sums, "counts");
      if (c.on_result == nullptr) return;
      const tessera_verify_result given = c_result(result);
      if (c.on_result(c.user_data, &given) != 0) throw Cancelled{"on_result ended the suite"};
    };
    for (const std::string& name : tessera::backends_to_verify(c.backend == nullptr ? "all" : c.backend)) {
      tessera::run_verify(name, tessera::verify_memory_of(name), verify, on_result);
    }
    if (sums.passed + sums.failed + sums.unsupported == 0) {
      throw tessera::Error(tessera::ErrorCode::kInvalidArgument,
                           fmt::format("no case has '{}' in its name", verify.filter));
    }
  });
}

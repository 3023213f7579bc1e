#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "verify/random_case.h"
#include "verify/verify.h"

namespace tessera {

struct RandomVerifyOptions {
  std::uint64_t seed = 1;
  double seconds = 60;
  std::uint64_t max_cases =
      std::numeric_limits<std::uint64_t>::max();  ///< the end if it comes before the seconds'
  std::uint64_t first = 0;                        ///< index of the first case
  RandomLimits limits;
};

/// What came of random cases on a backend.
struct RandomVerifyReport {
  std::uint64_t cases = 0;
  std::uint64_t unsupported = 0;
  std::uint64_t failed = 0;
  double largest_share = 0;  ///< of its bound, of any number that passed
};

/// A case that failed, and a smaller one that fails as well.
struct RandomFailure {
  std::uint64_t index = 0;
  VerifyResult result;
  RandomCase shrunk;
  VerifyResult shrunk_result;
};

/// Runs random cases on `backend` until the time is over or there have been enough.
RandomVerifyReport run_random_verify(const std::string& backend, const VerifyMemory& memory,
                                     const RandomVerifyOptions& options,
                                     const std::function<void(const RandomFailure&)>& on_failure);

/// A case as small and plain as can be found within `seconds` for which fails() is true, as it is for `from`.
RandomCase shrink_random_case(const RandomCase& from, const std::function<bool(const RandomCase&)>& fails,
                              double seconds);

}  // namespace tessera

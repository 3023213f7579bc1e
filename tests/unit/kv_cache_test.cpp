#include "engine/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/backend.h"
#include "tessera/error.h"

namespace tessera {
namespace {

KvCacheShape small_shape(int page_size, std::int64_t num_pages) {
  return {.num_layers = 2,
          .num_kv_heads = 3,
          .head_dim = 8,
          .dtype = DType::kF32,
          .page_size = page_size,
          .num_pages = num_pages};
}

ErrorCode code_of(const std::function<void()>& call, std::string* message = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.message();
    return error.code();
  }
  ADD_FAILURE() << "no error was thrown";
  return ErrorCode::kDevice;
}

TEST(PageAllocator, GivesOutEachPageOnceAndNoneItHasNot) {
  PageAllocator allocator(5);
  std::vector<std::int32_t> pages;
  EXPECT_TRUE(allocator.allocate(3, pages));
  EXPECT_TRUE(allocator.allocate(0, pages));
  EXPECT_FALSE(allocator.allocate(3, pages));
  EXPECT_EQ(pages.size(), 3u);
  EXPECT_EQ(allocator.num_free(), 2);
  EXPECT_TRUE(allocator.allocate(2, pages));
  EXPECT_EQ(std::set<std::int32_t>(pages.begin(), pages.end()), (std::set<std::int32_t>{0, 1, 2, 3, 4}));
}

TEST(KvSequence, RunningOutSaysTheNumbersAndChangesNothing) {
  const auto ops = make_ops_backend("reference");
  KvCache cache(small_shape(4, 10), *ops);
  KvSequence first(cache);
  KvSequence second(cache);
  first.reserve(25);  // 7 pages
  second.reserve(8);  // 2 pages
  const std::vector<std::int32_t> before(second.block_table().begin(), second.block_table().end());
  std::string message;
  EXPECT_EQ(code_of([&] { second.reserve(17); }, &message), ErrorCode::kOutOfMemory);
  for (const char* number : {"17 tokens", "3 more pages", "4 tokens", "1 of 10"}) {
    EXPECT_NE(message.find(number), std::string::npos) << message;
  }
  EXPECT_TRUE(std::ranges::equal(second.block_table(), before));
  EXPECT_EQ(cache.pages().num_free(), 1);
  first.release();
  second.reserve(17);
  EXPECT_EQ(second.block_table().size(), 5u);
}

TEST(KvSequence, MovesItsPages) {
  const auto ops = make_ops_backend("reference");
  KvCache cache(small_shape(4, 10), *ops);
  KvSequence a(cache);
  a.reserve(10);
  KvSequence b(std::move(a));
  EXPECT_EQ(b.block_table().size(), 3u);
  KvSequence c(cache);
  c.reserve(4);
  c = std::move(b);
  EXPECT_EQ(cache.pages().num_free(), 7);
  { const KvSequence d(std::move(c)); }
  EXPECT_EQ(cache.pages().num_free(), 10);
}

// Random growth and release of many sequences against a model that only counts: no page is ever in two
// sequences, none is lost, and a request fails exactly when the count says that it must.
TEST(KvSequence, RandomUseAgreesWithCounting) {
  const auto ops = make_ops_backend("reference");
  for (const int page_size : {1, 5, 16}) {
    constexpr std::int64_t kPages = 40;
    KvCache cache(small_shape(page_size, kPages), *ops);
    std::mt19937 random(static_cast<unsigned>(page_size));
    std::vector<KvSequence> sequences;
    std::vector<std::int64_t> counted(8, 0);  // pages
    for (int i = 0; i < 8; ++i) sequences.emplace_back(cache);
    for (int step = 0; step < 5000; ++step) {
      const std::size_t i = random() % sequences.size();
      if (random() % 5 == 0) {
        sequences[i].release();
        counted[i] = 0;
      } else {
        const std::int64_t tokens =
            static_cast<std::int64_t>(random() % (16u * static_cast<unsigned>(page_size)));
        const std::int64_t wanted = std::max(counted[i], (tokens + page_size - 1) / page_size);
        std::int64_t used = 0;
        for (const std::int64_t pages : counted) used += pages;
        const bool fits = used - counted[i] + wanted <= kPages;
        ASSERT_EQ(sequences[i].try_reserve(tokens), fits);
        if (fits) counted[i] = wanted;
      }
      std::set<std::int32_t> in_use;
      std::int64_t used = 0;
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        ASSERT_EQ(static_cast<std::int64_t>(sequences[s].block_table().size()), counted[s]);
        in_use.insert(sequences[s].block_table().begin(), sequences[s].block_table().end());
        used += counted[s];
      }
      ASSERT_EQ(static_cast<std::int64_t>(in_use.size()), used);
      ASSERT_EQ(cache.pages().num_free(), kPages - used);
      if (!in_use.empty()) {
        ASSERT_GE(*in_use.begin(), 0);
        ASSERT_LT(*in_use.rbegin(), kPages);
      }
    }
  }
}

TEST(KvCache, ViewsOfLayersDontOverlapAndFillTheMemory) {
  const auto ops = make_ops_backend("reference");
  const KvCacheShape shape = small_shape(4, 10);
  KvCache cache(shape, *ops);
  std::set<const void*> addresses;
  for (const KvCacheView& view : cache.layers()) {
    for (void* base : {view.k, view.v}) {
      for (std::int64_t page = 0; page < shape.num_pages; ++page) {
        for (int slot = 0; slot < shape.page_size; ++slot) {
          for (int head = 0; head < shape.num_kv_heads; ++head) {
            const float* row = static_cast<const float*>(base) + page * view.page_stride +
                               slot * view.token_stride + head * view.head_stride;
            for (int d = 0; d < shape.head_dim; ++d) addresses.insert(row + d);
          }
        }
      }
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(addresses.size() * sizeof(float)), cache.size_bytes());
  EXPECT_EQ(
      static_cast<const std::byte*>(*addresses.rbegin()) - static_cast<const std::byte*>(*addresses.begin()),
      cache.size_bytes() - static_cast<std::int64_t>(sizeof(float)));
}

TEST(KvCache, ValuesInKeysTakeNoMemoryOfTheirOwn) {
  const auto ops = make_ops_backend("reference");
  KvCacheShape shape = small_shape(4, 10);
  const std::int64_t size_bytes = KvCache(shape, *ops).size_bytes();
  shape.values_in_keys = true;
  const KvCache cache(shape, *ops);
  EXPECT_EQ(2 * cache.size_bytes(), size_bytes);
  const std::vector<KvCacheView>& layers = cache.layers();
  for (const KvCacheView& view : layers) EXPECT_EQ(view.v, view.k);
  EXPECT_EQ(static_cast<const std::byte*>(layers[1].k) - static_cast<const std::byte*>(layers[0].k),
            cache.size_bytes() / 2);
}

TEST(KvCache, LayersTakeWhatTheyNeedAndThoseThatReadOthersNothing) {
  const auto ops = make_ops_backend("reference");
  KvCacheShape shape = small_shape(4, 10);
  shape.num_layers = 4;
  shape.layers = {{3, 8}, {1, 16}, {3, 8, 0}, {1, 16, 1}};
  const KvCache cache(shape, *ops);
  const std::int64_t tokens = 4 * 10;
  EXPECT_EQ(cache.size_bytes(), tokens * 2 * (3 * 8 + 1 * 16) * static_cast<std::int64_t>(sizeof(float)));
  const std::vector<KvCacheView>& layers = cache.layers();
  ASSERT_EQ(layers.size(), 4u);
  const auto at = [&](const void* data) {
    return static_cast<const std::byte*>(data) - static_cast<const std::byte*>(layers[0].k);
  };
  EXPECT_EQ(at(layers[0].v), tokens * 24 * 4);
  EXPECT_EQ(at(layers[1].k), 2 * tokens * 24 * 4);
  EXPECT_EQ(at(layers[1].v), (2 * tokens * 24 + tokens * 16) * 4);
  EXPECT_EQ(layers[1].page_stride, 4 * 16);
  EXPECT_EQ(layers[1].head_stride, 4 * 16);
  EXPECT_EQ(layers[1].token_stride, 16);
  for (const std::size_t reader : {2u, 3u}) {
    EXPECT_EQ(layers[reader].k, layers[reader - 2].k);
    EXPECT_EQ(layers[reader].v, layers[reader - 2].v);
    EXPECT_EQ(layers[reader].page_stride, layers[reader - 2].page_stride);
  }
}

TEST(KvCache, LayersWithoutKeysTakeNothing) {
  const auto ops = make_ops_backend("reference");
  KvCacheShape shape = small_shape(4, 10);
  shape.num_layers = 3;
  shape.layers = {{.has_keys = false}, {3, 8}, {.has_keys = false}};
  const KvCache cache(shape, *ops);
  EXPECT_EQ(cache.size_bytes(), 4 * 10 * 2 * 3 * 8 * static_cast<std::int64_t>(sizeof(float)));
  ASSERT_EQ(cache.layers().size(), 3u);
  for (const std::size_t layer : {0u, 2u}) {
    EXPECT_EQ(cache.layers()[layer].k, nullptr);
    EXPECT_EQ(cache.layers()[layer].page_size, 4);
  }
  EXPECT_NE(cache.layers()[1].k, nullptr);
}

TEST(KvCache, SizesThatMakeNoSenseAreErrors) {
  const auto ops = make_ops_backend("reference");
  for (const std::vector<KvLayerShape>& layers :
       std::vector<std::vector<KvLayerShape>>{{{3, 8}},
                                              {{3, 8}, {0, 8}},
                                              {{3, 8}, {3, 8, 1}},
                                              {{3, 8, 1}, {3, 8}},
                                              {{.has_keys = false}, {3, 8, 0}}}) {
    KvCacheShape shape = small_shape(4, 10);
    shape.layers = layers;
    EXPECT_EQ(code_of([&] { KvCache(shape, *ops); }), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(code_of([&] { KvCache(small_shape(0, 10), *ops); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { KvCache(small_shape(4, 0), *ops); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { KvCache(small_shape(4, std::int64_t{1} << 40), *ops); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { KvCache(small_shape(1 << 30, std::int64_t{1} << 30), *ops); }),
            ErrorCode::kOutOfMemory);
  // Without lists of its pages, which would themselves take tens of gigabytes.
  KvCacheShape huge = small_shape(1, std::numeric_limits<std::int32_t>::max());
  huge.num_kv_heads = 1 << 16;
  const auto refusing = make_ops_backend("cpu");
  EXPECT_EQ(code_of([&] { KvCache(huge, *refusing); }), ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace tessera

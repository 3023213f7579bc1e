#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "ops/backend.h"

namespace tessera {
namespace {

constexpr int kPageSize = 4;

/// A cache of few pages, whose content is imagined.
struct CountedCache {
  explicit CountedCache(std::int64_t num_pages)
      : ops(make_ops_backend("reference")),
        cache({.num_layers = 1,
               .num_kv_heads = 1,
               .head_dim = 8,
               .dtype = DType::kF32,
               .page_size = kPageSize,
               .num_pages = num_pages},
              *ops),
        prefixes(cache) {}

  std::unique_ptr<OpsBackend> ops;
  KvCache cache;
  PrefixCache prefixes;
};

std::vector<std::int32_t> tokens_from(std::int32_t first, int count) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(PageAllocator, KeepsPagesIdleUntilNoOtherIsLeftAndLosesTheLongestIdleFirst) {
  PageAllocator allocator(4);
  std::vector<std::int32_t> lost;
  allocator.on_loss([&](std::int32_t page) { lost.push_back(page); });
  std::vector<std::int32_t> first, second;
  allocator.allocate(2, first);
  allocator.allocate(1, second);
  for (const std::int32_t page : {first[0], first[1], second[0]}) allocator.keep(page);
  allocator.release(second);
  allocator.release(first);
  EXPECT_EQ(allocator.num_idle(), 3);
  EXPECT_EQ(allocator.num_free(), 4);
  allocator.share(second[0]);  // is in use again
  allocator.release(second);   // and idle for the shortest time
  std::vector<std::int32_t> pages;
  EXPECT_TRUE(allocator.allocate(1, pages));
  EXPECT_TRUE(lost.empty()) << "one was free";
  EXPECT_FALSE(allocator.allocate(4, pages));
  EXPECT_TRUE(allocator.allocate(3, pages));
  EXPECT_EQ(lost, (std::vector<std::int32_t>{first[1], first[0], second[0]}));
  EXPECT_EQ(allocator.num_free(), 0);
  allocator.release(pages);
  EXPECT_EQ(allocator.num_idle(), 0) << "what they hold now is not worth keeping";
}

TEST(PageAllocator, APageIsFreeWhenItsLastOwnerGivesItBack) {
  PageAllocator allocator(1);
  std::vector<std::int32_t> pages;
  allocator.allocate(1, pages);
  allocator.share(pages[0]);
  allocator.release(pages);
  EXPECT_EQ(allocator.num_free(), 0);
  allocator.release(pages);
  EXPECT_EQ(allocator.num_free(), 1);
}

TEST(PrefixCache, FindsFullPagesByAllTokensUpToTheirEnd) {
  CountedCache counted(8);
  KvSequence sequence(counted.cache);
  const std::vector<std::int32_t> tokens = tokens_from(1, 11);
  sequence.reserve(11);
  PrefixChain chain;
  counted.prefixes.add(tokens, 2, sequence, chain);
  EXPECT_EQ(chain.num_pages, 2);

  PrefixChain found;
  const auto find = [&](const std::vector<std::int32_t>& wanted) {
    return counted.prefixes.find(wanted, std::ssize(wanted) / kPageSize, found);
  };
  const std::vector<std::int32_t> pages(sequence.block_table().begin(), sequence.block_table().begin() + 2);
  EXPECT_EQ(find(tokens), pages);
  EXPECT_EQ(found.last, chain.last);
  EXPECT_EQ(counted.prefixes.find(tokens, 1, found), std::vector<std::int32_t>{pages[0]});
  std::vector<std::int32_t> other = tokens;
  other[7] = 99;
  EXPECT_EQ(find(other), std::vector<std::int32_t>{pages[0]});
  other[0] = 98;
  EXPECT_TRUE(find(other).empty());
  EXPECT_TRUE(find({tokens.begin() + 4, tokens.end()}).empty())
      << "the second page's tokens, at the beginning";
  sequence.release();
  EXPECT_EQ(find(tokens), pages) << "nobody's, but kept";
}

TEST(PrefixCache, ASequenceTakesThePageThatAnotherHasOfTheSameTokens) {
  CountedCache counted(8);
  KvSequence a(counted.cache), b(counted.cache);
  const std::vector<std::int32_t> tokens = tokens_from(1, 8);
  a.reserve(8);
  b.reserve(8);
  PrefixChain chain_a, chain_b;
  counted.prefixes.add(tokens, 2, a, chain_a);
  EXPECT_EQ(counted.cache.pages().num_free(), 4);
  counted.prefixes.add(tokens, 2, b, chain_b);
  EXPECT_TRUE(std::ranges::equal(a.block_table(), b.block_table()));
  EXPECT_EQ(counted.cache.pages().num_free(), 6);
  EXPECT_EQ(chain_a.last, chain_b.last);
  a.release();
  EXPECT_EQ(counted.cache.pages().num_idle(), 0);
  b.release();
  EXPECT_EQ(counted.cache.pages().num_idle(), 2);
}

// Sequences that begin, grow and end at random, whose tokens often agree, against a record of what each page
// holds: a page that is found holds exactly the tokens asked for, and only those in use are not free.
TEST(PrefixCache, RandomUseFindsOnlyPagesThatHoldTheTokensAskedFor) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    constexpr std::int64_t kPages = 24;
    CountedCache counted(kPages);
    std::map<std::int32_t, std::vector<std::int32_t>> holds;  // by page: all tokens up to its end
    struct Running {
      std::vector<std::int32_t> tokens;
      KvSequence pages;
      PrefixChain chain;
    };
    std::vector<Running> running;
    std::mt19937 random(seed);
    std::int64_t num_found = 0, num_partly = 0;
    for (int step = 0; step < 3000; ++step) {
      if (running.size() < 4 && random() % 2 == 0) {
        std::vector<std::int32_t> tokens;
        const std::size_t length = 1 + random() % 24;
        while (tokens.size() < length) {  // of few kinds of pages
          const std::int32_t kind = static_cast<std::int32_t>(random() % 3);
          for (int i = 0; i < kPageSize; ++i) tokens.push_back(10 * kind + i);
        }
        tokens.resize(length);
        Running next{tokens, KvSequence(counted.cache), {}};
        const std::int64_t most = (std::ssize(tokens) - 1) / kPageSize;
        const std::vector<std::int32_t> found = counted.prefixes.find(tokens, most, next.chain);
        for (std::size_t i = 0; i < found.size(); ++i) {
          const auto end = tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * kPageSize);
          ASSERT_EQ(holds.at(found[i]), std::vector<std::int32_t>(tokens.begin(), end));
        }
        num_found += std::ssize(found);
        num_partly += std::ssize(found) < most;
        next.pages.append_shared(found);
        if (!next.pages.try_reserve(std::ssize(tokens))) continue;
        running.push_back(std::move(next));
      } else if (!running.empty()) {
        Running& one = running[random() % running.size()];
        const std::int64_t full = std::ssize(one.tokens) / kPageSize;
        const std::int64_t known = std::max(one.chain.num_pages, static_cast<std::int64_t>(random() % 8));
        for (std::int64_t i = one.chain.num_pages; i < std::min(known, full); ++i) {
          // Computing a page writes it, which is seen by whoever shares it.
          const auto end = one.tokens.begin() + (i + 1) * kPageSize;
          holds[one.pages.block_table()[static_cast<std::size_t>(i)]].assign(one.tokens.begin(), end);
        }
        counted.prefixes.add(one.tokens, std::min(known, full), one.pages, one.chain);
        if (random() % 2 == 0) {
          std::swap(one, running.back());
          running.pop_back();
        }
      }
      std::map<std::int32_t, bool> in_use;
      for (const Running& one : running) {
        for (const std::int32_t page : one.pages.block_table()) in_use[page] = true;
      }
      ASSERT_EQ(counted.cache.pages().num_free(), kPages - std::ssize(in_use));
    }
    EXPECT_GT(num_found, 500);
    EXPECT_GT(num_partly, 100) << "pages were lost, or not there yet";
  }
}

}  // namespace
}  // namespace tessera

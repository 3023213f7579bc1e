// Attention weights that the engine recomputes, against what the model's own attention made of them.

#include "engine/attention_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "core/element.h"
#include "model/recording_ops.h"
#include "model/tiny_engine.h"
#include "tessera/engine.h"

namespace tessera {
namespace {

/// Keeps the outputs of attention, which are what the products with (hidden_size, num_heads * head_dim)
/// weights read.
class SeenAttention : public RecordingOps {
 public:
  SeenAttention(std::int64_t hidden_size, std::int64_t columns)
      : RecordingOps(make_ops_backend("cpu")), hidden_size_(hidden_size), columns_(columns) {}
  void gemm(const GemmArguments& a, Stream stream) override {
    if (a.weight.rows == hidden_size_ && a.x.columns == columns_) {
      std::vector<float>& seen = inputs_.emplace_back();
      for (std::int64_t row = 0; row < a.x.rows; ++row) {
        const float* x = static_cast<const float*>(a.x.data) + row * a.x.row_stride;
        seen.insert(seen.end(), x, x + a.x.columns);
      }
    }
    RecordingOps::gemm(a, stream);
  }
  /// (2 * layers): (tokens, num_heads * head_dim)
  const std::vector<std::vector<float>>& inputs() const { return inputs_; }

 private:
  std::int64_t hidden_size_, columns_;
  std::vector<std::vector<float>> inputs_;
};

std::vector<std::int64_t> all_positions(std::int64_t count) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

void expect_weights_times_values(const std::function<void(ModelConfig&)>& change) {
  const RandomModelShape shape = random_model_shape("tiny");
  const std::int64_t columns = std::int64_t{shape.num_heads} * shape.head_dim;
  SeenAttention ops(shape.hidden_size, columns);
  TinyEngine engine(ops, false, false, {}, change);
  constexpr std::int64_t kTokens = 45;
  engine.core->add(1, AttentionRequest{some_tokens(kTokens, 3), all_positions(kTokens), {}});
  std::vector<Event> events;
  while (engine.core->has_work()) {
    for (Event& event : engine.core->step()) events.push_back(std::move(event));
  }
  ASSERT_EQ(events.size(), 1u);
  ASSERT_EQ(events[0].type, Event::Type::kFinished) << events[0].error_message;
  const std::vector<float>& weights = events[0].attention;
  ASSERT_EQ(std::ssize(weights), shape.num_layers * shape.num_heads * kTokens * kTokens);
  ASSERT_EQ(columns, shape.hidden_size);
  ASSERT_EQ(std::ssize(ops.inputs()), 2 * shape.num_layers);
  const std::int64_t page_size = engine.cache->shape().page_size;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const KvCacheView& cache = engine.cache->layers()[static_cast<std::size_t>(layer)];
    for (int head = 0; head < shape.num_heads; ++head) {
      const int kv_head = head / (shape.num_heads / shape.num_kv_heads);
      for (std::int64_t i = 0; i < kTokens; ++i) {
        const float* row = weights.data() + ((layer * shape.num_heads + head) * kTokens + i) * kTokens;
        EXPECT_NEAR(std::accumulate(row, row + i + 1, 0.0), 1, 1e-6);
        EXPECT_TRUE(std::all_of(row + i + 1, row + kTokens, [](float weight) { return weight == 0; }));
        for (int d = 0; d < shape.head_dim; ++d) {
          double expected = 0, size = 0;
          for (std::int64_t j = 0; j <= i; ++j) {
            // A cache that was empty gives out its pages in order.
            const float v = static_cast<const float*>(
                cache.v)[j / page_size * cache.page_stride + kv_head * cache.head_stride +
                         j % page_size * cache.token_stride + d];
            expected += static_cast<double>(row[j]) * v;
            size += std::abs(static_cast<double>(row[j]) * v);
          }
          const float actual =
              ops.inputs()[static_cast<std::size_t>(2 * layer + 1)]
                          [static_cast<std::size_t>(i * columns + head * shape.head_dim + d)];
          // A score of fp32 is off by some roundings of its products' sum, and so is the sum of values.
          ASSERT_NEAR(actual, expected, 1e-5 * size + 1e-7) << layer << " " << head << " " << i << " " << d;
        }
      }
    }
  }
}

TEST(AttentionView, WeightsTimesValuesAreWhatAttentionGave) {
  expect_weights_times_values({});
  expect_weights_times_values([](ModelConfig& config) { config.softmax_scale = 0.9f; });
  expect_weights_times_values([](ModelConfig& config) {
    config.softmax_scale = 0.9f;
    config.attention_softcap = 2.0f;
  });
}

// Of each head's weights for one position, by layer: whether it slides with a window of 12, and whether a
// sink takes a part.
TEST(AttentionView, OfLayersThatDifferAddUpToOneOrLeaveARestToSinks) {
  constexpr std::int64_t kTokens = 30, kWindow = 12;
  for (const auto& [name, slides, has_sinks] :
       {std::tuple("gemma4", std::vector<bool>{true, true, false}, false),
        std::tuple("gemma4_e", std::vector<bool>{true, false, true, false}, false),
        std::tuple("gpt_oss", std::vector<bool>{true, false}, true)}) {
    SCOPED_TRACE(name);
    LoadOptions load;
    load.backend = "cpu";
    const Model model = Model::load(std::string(TESSERA_FIXTURES "/models/") + name, load);
    EngineOptions options;
    options.max_seq_len = 64;
    options.prefill_chunk = 7;
    Engine engine(model, options);
    std::vector<std::int32_t> tokens = some_tokens(kTokens, 3);
    for (std::int32_t& token : tokens) token %= 288;
    engine.submit(AttentionRequest{tokens, {kTokens - 1}, {}});
    std::vector<float> weights;
    while (engine.has_work()) {
      for (const Event& event : engine.step()) {
        ASSERT_NE(event.type, Event::Type::kError) << event.error_message;
        weights = event.attention;
      }
    }
    const int num_heads = model.info().num_heads;
    ASSERT_EQ(std::ssize(weights), std::ssize(slides) * num_heads * kTokens);
    double least = 2;  // of sums; a head that looks at little else leaves sinks nothing
    for (std::size_t row = 0; row < slides.size() * static_cast<std::size_t>(num_heads); ++row) {
      const float* of_head = weights.data() + row * kTokens;
      const double sum = std::accumulate(of_head, of_head + kTokens, 0.0);
      least = std::min(least, sum);
      EXPECT_LT(sum, 1 + 1e-5) << row;
      // Of layers that see all, some head sees what others don't; of a sharp one it may be 0.
      const bool sees_all = std::any_of(of_head, of_head + kTokens - kWindow, [](float w) { return w > 0; });
      EXPECT_EQ(sees_all, !slides[row / static_cast<std::size_t>(num_heads)]) << row;
    }
    EXPECT_EQ(least < 1 - 1e-4, has_sinks) << least;  // sums of 30 fp32 numbers are closer to theirs
  }
}

TEST(AttentionView, DoesNotDependOnChunksPagesOrTheRequestsBesideIt) {
  LoadOptions load;
  load.backend = "cpu";
  const Model model = Model::random(random_model_shape("tiny"), DType::kF32, load);
  const std::vector<std::int32_t> tokens = some_tokens(50, 3);
  const auto view = [&](EngineOptions options, bool with_others, std::vector<int> layers) {
    options.max_seq_len = 64;
    options.batch_invariant = true;
    Engine engine(model, options);
    Request other;
    other.max_tokens = 12;
    for (int i = 0; with_others && i < 2; ++i) {
      other.prompt = some_tokens(20 + 7 * i, i);
      engine.submit(other);
    }
    if (with_others) {  // whose pages the view begins with
      other.prompt = tokens;
      other.max_tokens = 1;
      engine.submit(other);
      for (int i = 0; i < 12; ++i) engine.step();
    }
    const RequestId id = engine.submit(AttentionRequest{tokens, {21, 22, 49}, std::move(layers)});
    std::vector<float> weights;
    while (engine.has_work()) {
      for (const Event& event : engine.step()) {
        if (event.id == id) weights = event.attention;
      }
    }
    EXPECT_EQ(engine.stats().cached_tokens > 0, with_others);
    return weights;
  };
  const std::vector<float> expected = view({}, false, {});
  const std::int64_t layer_size = 1LL * model.info().num_heads * 3 * 50;
  ASSERT_EQ(std::ssize(expected), model.info().num_layers * layer_size);
  EngineOptions options;
  options.prefill_chunk = 7;
  options.page_size = 5;
  EXPECT_EQ(view(options, true, {}), expected);
  const std::vector<float> last_layer(expected.end() - layer_size, expected.end());
  EXPECT_EQ(view({}, false, {model.info().num_layers - 1}), last_layer);
}

TEST(AttentionView, RefusesWhatIsNotThere) {
  const auto ops = make_ops_backend("cpu");
  TinyEngine engine(*ops);
  const std::vector<std::int32_t> tokens = some_tokens(9, 0);
  for (const AttentionRequest& wrong :
       {AttentionRequest{{}, {0}, {}}, AttentionRequest{tokens, {}, {}}, AttentionRequest{tokens, {9}, {}},
        AttentionRequest{tokens, {-1}, {}}, AttentionRequest{tokens, {2, 2}, {}},
        AttentionRequest{tokens, {2}, {1, 0}}, AttentionRequest{tokens, {2}, {99}}}) {
    EXPECT_THROW(engine.core->check(wrong), Error);
  }
  engine.core->check(AttentionRequest{tokens, {2, 8}, {0, 1}});
}

TEST(AttentionView, GroupsHeadsAndKeepsToTheWindow) {
  const auto ops = make_ops_backend("reference");
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const KvCacheShape shape{
        .num_layers = 2, .num_kv_heads = 2, .head_dim = 4, .dtype = dtype, .page_size = 3, .num_pages = 4};
    KvCache cache(shape, *ops);
    const std::vector<std::int32_t> pages = {2, 0, 3};
    // Halves of small numbers are exact in every type.
    const auto key = [](std::int64_t token, int head, int d) {
      return static_cast<double>((token * 5 + head * 3 + d * 7) % 9 - 4) / 2;
    };
    const KvCacheView& layer = cache.layers()[1];
    for (std::int64_t token = 0; token < 8; ++token) {
      for (int head = 0; head < 2; ++head) {
        for (int d = 0; d < 4; ++d) {
          store_element(layer.k, dtype,
                        pages[static_cast<std::size_t>(token / 3)] * layer.page_stride +
                            head * layer.head_stride + token % 3 * layer.token_stride + d,
                        key(token, head, d));
        }
      }
    }
    std::vector<float> queries;  // (2 positions, 4 heads, 4)
    for (int i = 0; i < 2 * 4 * 4; ++i) queries.push_back(static_cast<float>(i * 11 % 13 - 6) / 2);
    const std::vector<std::int64_t> positions = {1, 7};
    const std::vector<float> weights =
        attention_weights({1, queries, positions, 8, pages, std::int64_t{3}}, cache, *ops);
    ASSERT_EQ(weights.size(), 4u * 2 * 8);
    for (int head = 0; head < 4; ++head) {
      for (std::size_t i = 0; i < 2; ++i) {
        const std::int64_t end = positions[i] + 1, begin = std::max<std::int64_t>(0, end - 3);
        std::vector<double> exponentials(8);
        double sum = 0;
        for (std::int64_t token = begin; token < end; ++token) {
          double score = 0;
          for (int d = 0; d < 4; ++d) {
            score +=
                static_cast<double>(
                    queries[(i * 4 + static_cast<std::size_t>(head)) * 4 + static_cast<std::size_t>(d)]) *
                key(token, head / 2, d);
          }
          sum += exponentials[static_cast<std::size_t>(token)] = std::exp(score / 2);
        }
        for (std::size_t token = 0; token < 8; ++token) {
          EXPECT_NEAR(weights[(static_cast<std::size_t>(head) * 2 + i) * 8 + token],
                      exponentials[token] / sum, 1e-7);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera

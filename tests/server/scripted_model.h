#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/served_model.h"

namespace tessera::testing {

/// A model whose tokens are bytes and who says its prompt again and again. A prompt that begins with "fail"
/// fails after two tokens. Counts what runs.
class ScriptedModel : public server::ServedModel {
 public:
  explicit ScriptedModel(std::int64_t max_seq_len = 4096, std::size_t max_waiting = 256)
      : max_seq_len_(max_seq_len), max_waiting_(max_waiting) {
    info_.vocab_size = 256;
    info_.hidden_size = 3;
    info_.num_layers = 2;
    info_.num_heads = 2;
    info_.has_tokenizer = info_.has_chat_template = true;
  }

  const ModelInfo& info() const override { return info_; }
  std::int64_t max_seq_len() const override { return max_seq_len_; }
  std::vector<std::int32_t> encode(std::string_view text, bool) const override {
    std::vector<std::int32_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::vector<std::int32_t> encode_chat(const server::Conversation& conversation) const override {
    std::string text;
    for (const auto& message : nlohmann::json::parse(conversation.messages)) text += message["content"];
    // A template that writes what it is asked to write.
    if (conversation.variables == R"({"writes":"tools"})") text += conversation.tools;
    return encode(text, true);
  }
  std::string decode(std::span<const std::int32_t> tokens, bool) const override {
    std::string text;
    for (const std::int32_t token : tokens) text += static_cast<char>(token);
    return text;
  }
  std::string token_bytes(std::int32_t token) const override {
    return std::string(1, static_cast<char>(token));
  }
  std::shared_ptr<TokenConstraint> json_schema_constraint(const std::string&) const override {
    throw Error(ErrorCode::kUnsupported, "no schemas here");
  }
  std::shared_ptr<TokenConstraint> tool_call_constraint(const std::vector<server::Tool>&,
                                                        bool) const override {
    return nullptr;
  }

  RequestId submit(Request request) override {
    const std::lock_guard lock(mutex_);
    if (running_.size() >= max_waiting_) throw QueueFull(ErrorCode::kOutOfMemory, "the queue is full");
    running_[++last_id_] = {std::move(request), 0};
    changed_.notify_one();
    return last_id_;
  }
  RequestId submit(EmbeddingRequest request) override {
    const std::lock_guard lock(mutex_);
    Event event;
    event.id = ++last_id_;
    event.type = Event::Type::kFinished;
    event.embedding = {1.0f, 0.5f, static_cast<float>(request.prompt.size())};
    ready_.push_back(std::move(event));
    changed_.notify_one();
    return last_id_;
  }
  /// Every head looks at all tokens alike.
  RequestId submit(AttentionRequest request) override {
    const std::lock_guard lock(mutex_);
    Event event;
    event.id = ++last_id_;
    event.type = Event::Type::kFinished;
    const auto seen = static_cast<std::size_t>(request.positions.front()) + 1;
    for (int head = 0; head < info_.num_heads; ++head) {
      for (std::size_t i = 0; i < request.tokens.size(); ++i) {
        event.attention.push_back(i < seen ? 1.0f / static_cast<float>(seen) : 0.0f);
      }
    }
    ready_.push_back(std::move(event));
    changed_.notify_one();
    return last_id_;
  }
  bool cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    return running_.erase(id) != 0;
  }
  std::vector<Event> step() override {
    std::this_thread::sleep_for(step_time);
    const std::lock_guard lock(mutex_);
    std::vector<Event> events = std::exchange(ready_, {});
    for (auto entry = running_.begin(); entry != running_.end();) {
      auto& [id, sequence] = *entry;
      Event event;
      event.id = id;
      const auto& prompt = sequence.request.prompt;
      const bool fails =
          decode(std::span(prompt).first(std::min<std::size_t>(4, prompt.size())), true) == "fail";
      if (fails && sequence.generated == 2) {
        event.type = Event::Type::kError;
        event.error_code = ErrorCode::kDevice;
        event.error_message = "a NaN was computed";
      } else if (sequence.generated == sequence.request.max_tokens ||
                 static_cast<std::int64_t>(prompt.size()) + sequence.generated >= max_seq_len_) {
        event.type = Event::Type::kFinished;
        event.stats.prompt_tokens = static_cast<std::int64_t>(prompt.size());
        event.stats.generated_tokens = sequence.generated;
      } else {
        event.token = prompt[static_cast<std::size_t>(sequence.generated) % prompt.size()];
        event.text = token_bytes(event.token);
        event.logprob = -0.5f;
        if (sequence.request.top_logprobs) event.top_logprobs = {{event.token, -0.5f}};
        ++sequence.generated;
      }
      const bool ended = event.type != Event::Type::kToken;
      events.push_back(std::move(event));
      entry = ended ? running_.erase(entry) : std::next(entry);
    }
    ++num_steps_;
    return events;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return !running_.empty() || !ready_.empty(); });
  }
  void wake() override { changed_.notify_all(); }
  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    EngineStats stats;
    stats.running = static_cast<std::int64_t>(running_.size());
    stats.steps = num_steps_;
    stats.requests_submitted = last_id_;
    return stats;
  }

  std::chrono::microseconds step_time{100};  ///< set before the server runs

 private:
  struct Sequence {
    Request request;
    std::int64_t generated = 0;
  };
  ModelInfo info_;
  std::int64_t max_seq_len_;
  std::size_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Sequence> running_;
  std::vector<Event> ready_;
  RequestId last_id_ = 0;
  std::uint64_t num_steps_ = 0;
};

}  // namespace tessera::testing

#include "model/checkpoint/hf_rope.h"

#include <cmath>
#include <string>
#include <utility>

namespace tessera {
namespace {

/// The factor that YaRN multiplies cos and sin by, from its two "mscale" settings where both are given.
float yarn_attention_factor(const JsonFields& scaling, double factor) {
  if (const auto given = scaling.real("attention_factor")) return *given;
  const auto grown = [&](double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; };
  const double mscale = scaling.number("mscale").value_or(0);
  const double mscale_all_dim = scaling.number("mscale_all_dim").value_or(0);
  if (mscale == 0 || mscale_all_dim == 0) return static_cast<float>(grown(1));
  return static_cast<float>(grown(mscale) / grown(mscale_all_dim));
}

/// Of the numbers of positions that a model has been extended to and that it was first trained on.
float longrope_attention_factor(const JsonFields& scaling, double factor, std::int64_t original_max_seq_len) {
  if (const auto given = scaling.real("attention_factor")) return *given;
  if (factor <= 1) return 1;
  return static_cast<float>(
      std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original_max_seq_len))));
}

/// How many of a head's elements are rotated, 0: all. Of an architecture that rotates whole heads
/// transformers fails where a file says otherwise or, in some of its versions and for some RoPE types,
/// ignores it.
int rotary_dim(const JsonFields& fields, const JsonFields& scaling, int head_dim,
               const HfRopeTraits& traits) {
  const auto part = [&](double fraction) { return static_cast<int>(head_dim * fraction); };
  for (const JsonFields* owner : {&scaling, &fields}) {
    const auto fraction = owner->number("partial_rotary_factor");
    if (!fraction) continue;
    const nlohmann::json& value = *owner->find("partial_rotary_factor");
    if (traits.partial) {
      const int rotated = *fraction > 0 && *fraction <= 1 ? part(*fraction) : 0;
      if (rotated == 0) owner->fail("partial_rotary_factor", value, "a part of the heads was expected");
      return rotated == head_dim ? 0 : rotated;
    }
    if (*fraction != 1) {
      owner->unsupported("partial_rotary_factor", value,
                         "this architecture rotates whole heads, so that only 1 is supported");
    }
  }
  return traits.partial_factor < 1 ? part(traits.partial_factor) : 0;
}

/// Some pairs alone are turned, by the frequencies that they have among all of a head's.
RopeConfig parse_proportional(const JsonFields& scaling, int head_dim, RopeConfig rope) {
  const double fraction = scaling.number("partial_rotary_factor").value_or(1);
  const int num_turned =
      fraction > 0 && fraction <= 1 ? static_cast<int>(std::floor(fraction * head_dim / 2)) : 0;
  if (num_turned == 0) {
    const nlohmann::json* const value = scaling.find("partial_rotary_factor");
    scaling.fail("partial_rotary_factor", value == nullptr ? nlohmann::json(fraction) : *value,
                 "a part of the heads was expected");
  }
  rope.num_turned_pairs = num_turned == head_dim / 2 ? 0 : num_turned;
  if (const float factor = scaling.real("factor").value_or(1); factor != 1)
    rope.linear = RopeLinearScaling{.factor = factor};
  return rope;
}

/// Of what `scaling` holds and, for some settings, what stands around it.
RopeConfig parse_settings(const JsonFields& fields, const JsonFields& scaling, const ModelConfig& config,
                          const HfRopeTraits& traits) {
  const auto own_or_outer = [&](const char* name) {
    const auto own = scaling.real(name);
    return own ? own : fields.real(name);
  };

  RopeConfig rope;
  rope.pairing = traits.pairing;
  rope.theta = own_or_outer("rope_theta").value_or(traits.theta);
  const char* type_key = scaling.find("rope_type") != nullptr ? "rope_type" : "type";
  std::string type = scaling.text(type_key).value_or("default");
  if (type == "proportional") return parse_proportional(scaling, config.head_dim, std::move(rope));
  rope.rotary_dim = rotary_dim(fields, scaling, config.head_dim, traits);
  if (traits.has_image_positions && type == "mrope") type = "default";
  if (traits.has_ntk_alpha && type == "dynamic") {
    if (const double alpha = scaling.number("alpha").value_or(0); alpha != 0) {
      const double dims = config.head_dim;
      rope.theta = static_cast<float>(rope.theta * std::pow(alpha, dims / (dims - 2)));
      type = "default";
    }
  }
  if (traits.only_longrope) {
    if (type == "su" || type == "yarn") type = "longrope";  // what older files call it
    if (type != "default" && type != "longrope") {
      scaling.unsupported(type_key, *scaling.find(type_key),
                          "of RoPE's scalings this architecture has longrope alone");
    }
  }
  // Within the context that the model was trained on it scales nothing, and beyond there are no positions.
  if (type == "dynamic") type = "default";
  const auto original_max_seq_len = [&] {
    constexpr const char* kKey = "original_max_position_embeddings";
    if (const auto outer = fields.integer(kKey)) return *outer;
    if (traits.original_max_seq_len) return *traits.original_max_seq_len;
    return scaling.integer(kKey).value_or(config.max_seq_len);
  };
  const auto required = [&](const char* name) {
    const auto value = scaling.real(name);
    if (!value) scaling.missing(name);
    return *value;
  };
  if (type == "linear") {
    rope.linear = RopeLinearScaling{.factor = required("factor")};
  } else if (type == "llama3") {
    rope.llama3 = RopeLlama3Scaling{.factor = required("factor"),
                                    .low_freq_factor = required("low_freq_factor"),
                                    .high_freq_factor = required("high_freq_factor"),
                                    .original_max_seq_len = original_max_seq_len()};
  } else if (type == "yarn") {
    RopeYarnScaling yarn;
    yarn.original_max_seq_len = original_max_seq_len();
    if (yarn.original_max_seq_len <= 0) {
      scaling.fail("original_max_position_embeddings", nlohmann::json(yarn.original_max_seq_len),
                   "a positive number was expected");
    }
    yarn.factor = scaling.real("factor").value_or(static_cast<float>(config.max_seq_len) /
                                                  static_cast<float>(yarn.original_max_seq_len));
    // As in transformers, 0 stands for the default too.
    if (const float beta = scaling.real("beta_fast").value_or(0); beta != 0) yarn.beta_fast = beta;
    if (const float beta = scaling.real("beta_slow").value_or(0); beta != 0) yarn.beta_slow = beta;
    yarn.attention_factor = yarn_attention_factor(scaling, yarn.factor);
    yarn.truncate = scaling.boolean("truncate").value_or(true);
    rope.yarn = yarn;
  } else if (type == "longrope") {
    RopeLongScaling longrope;
    for (const auto& [name, divisors] : {std::pair("short_factor", &longrope.short_divisors),
                                         std::pair("long_factor", &longrope.long_divisors)}) {
      auto values = scaling.reals(name);
      if (!values) scaling.missing(name);
      *divisors = std::move(*values);
    }
    longrope.original_max_seq_len = original_max_seq_len();
    const double extension =
        static_cast<double>(config.max_seq_len) / static_cast<double>(longrope.original_max_seq_len);
    longrope.attention_factor = longrope_attention_factor(
        scaling, scaling.number("factor").value_or(extension), longrope.original_max_seq_len);
    rope.longrope = std::move(longrope);
  } else if (type != "default") {
    scaling.unsupported(type_key, *scaling.find(type_key),
                        "supported are default, linear, dynamic, llama3, yarn, longrope and proportional");
  }
  return rope;
}

/// RoPE's settings, empty if a file has none.
JsonFields rope_settings(const JsonFields& fields) {
  static const nlohmann::json empty = nlohmann::json::object();
  const auto filled = [&](const char* key) {
    const nlohmann::json* field = fields.find(key);
    return field != nullptr && !(field->is_object() && field->empty()) ? field : nullptr;
  };
  const char* key = filled("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* object = filled(key);
  return JsonFields(object == nullptr ? empty : *object, fields.where() + ": " + key);
}

}  // namespace

RopeConfig parse_hf_rope(const JsonFields& fields, const ModelConfig& config, const HfRopeTraits& traits) {
  const JsonFields scaling = rope_settings(fields);
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (scaling.find(layer_type) != nullptr) {
      scaling.unsupported(layer_type, *scaling.find(layer_type),
                          "RoPE settings that differ between layers are not supported");
    }
  }
  return parse_settings(fields, scaling, config, traits);
}

std::optional<QueryScaling> parse_hf_query_scaling(const JsonFields& fields) {
  const JsonFields settings = rope_settings(fields);
  const auto beta = settings.real("llama_4_scaling_beta");
  if (!beta) return std::nullopt;
  const auto original = settings.integer("original_max_position_embeddings");
  if (!original) settings.missing("original_max_position_embeddings");
  return QueryScaling{.beta = *beta, .original_max_seq_len = *original};
}

void parse_hf_sliding_rope(const JsonFields& fields, ModelConfig& config, const HfRopeTraits& traits) {
  const nlohmann::json* parameters = fields.find("rope_parameters");
  const auto settings = [&](const char* layers, const char* outer_theta, float theta) {
    nlohmann::json object = nlohmann::json::object();
    if (parameters != nullptr && parameters->is_object() && parameters->contains(layers) &&
        (*parameters)[layers].is_object())
      object = (*parameters)[layers];
    if (object.contains("rope_theta")) return object;
    object["rope_theta"] = theta;
    if (const auto outer = outer_theta == nullptr ? std::nullopt : fields.real(outer_theta))
      object["rope_theta"] = *outer;
    return object;
  };
  nlohmann::json full = settings("full_attention", "rope_theta", traits.theta);
  if (const nlohmann::json* scaling = fields.find("rope_scaling")) {
    if (!scaling->is_object()) fields.fail("rope_scaling", *scaling, "an object was expected");
    full.update(*scaling);
  }
  const nlohmann::json sliding =
      settings("sliding_attention", traits.sliding_theta_key, traits.sliding_theta.value_or(traits.theta));
  const std::string where = fields.where() + ": RoPE of ";
  ModelConfig of_full = config;
  if (config.full_attention) of_full.head_dim = config.full_attention->head_dim;
  config.rope = parse_settings(fields, JsonFields(full, where + "full_attention"), of_full, traits);
  config.sliding_rope =
      parse_settings(fields, JsonFields(sliding, where + "sliding_attention"), config, traits);
}

}  // namespace tessera

#include "workers/python/remote_settings.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "proto/config.pb.h"
#include "workers/kit/batch_columns.h"

namespace ringfeed {

std::optional<RemoteSettings> remote_settings(const StageConfig& stage) {
  const RemoteFilesConfig& own = stage.remote_files();  // of a provider: what is usual
  RemoteSettings settings;
  if (stage.has_remote_files()) {
    settings.urls = {own.url().begin(), own.url().end()};
    settings.lists = {own.list().begin(), own.list().end()};
    settings.cache = own.cache();
    settings.cache_bytes = own.cache_bytes();
    settings.storage_options = own.storage_options();
    if (own.has_give_up_after_s()) settings.give_up_after_s = own.give_up_after_s();
  } else if (std::optional<UrlSettings> urls = url_settings(stage)) {
    static_cast<UrlSettings&>(settings) = std::move(*urls);
  } else {
    return std::nullopt;
  }
  settings.python_path = {own.python_path().begin(), own.python_path().end()};
  settings.fetches = own.fetches();
  settings.look_again_s = own.look_again_s();
  return settings;
}

ObjectSettings remote_object(const RemoteSettings& settings, bool finite) {
  nlohmann::json options = {{"urls", settings.urls},      {"lists", settings.lists},
                            {"cache", settings.cache},    {"cache_bytes", settings.cache_bytes},
                            {"storage_options", nullptr}, {"threads", settings.fetches},
                            {"look_again_s", nullptr},    {"give_up_after_s", nullptr}};
  if (!settings.storage_options.empty()) {
    options["storage_options"] = nlohmann::json::parse(settings.storage_options, nullptr, false);
  }
  if (!finite) options["look_again_s"] = settings.look_again_s;
  if (settings.give_up_after_s) options["give_up_after_s"] = *settings.give_up_after_s;
  return {.object = "ringfeed.worker.files:Files",
          .options = options.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
          .python_path = settings.python_path,
          .source = true};
}

ObjectSettings object_of_batcher(const PythonBatcherConfig& config) {
  ObjectSettings settings = object_of(config, false);
  settings.batch = true;
  nlohmann::json fields = nlohmann::json::array();
  for (const BatchField& field : batch_fields(config.fields())) {
    fields.push_back({field.name, field.dtype, field.shape, field.bytes_max});
  }
  settings.fields = fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return settings;
}

ObjectSettings object_of_stage(const StageConfig& stage, const DataLoaderConfig& feed) {
  if (const auto remote = remote_settings(stage)) return remote_object(*remote, feed.epochs() > 0);
  // It has no object: the trainer's process has it.
  if (stage.has_dataset_batcher()) return {};
  if (stage.has_python_batcher()) return object_of_batcher(stage.python_batcher());
  if (!stage.has_python_source()) return object_of(stage.python(), false);
  ObjectSettings settings = object_of(stage.python_source());
  settings.state = PythonSourceConfig::State_Name(stage.python_source().state());
  return settings;
}

}  // namespace ringfeed

#include "workers/stages/all.h"

#include <utility>

#include "workers/stages/bitext_collator.h"
#include "workers/stages/bitext_source.h"
#include "workers/stages/chess_games.h"
#include "workers/stages/chess_variations.h"
#include "workers/stages/chunk_rescorer.h"
#include "workers/stages/chunk_source_loader.h"
#include "workers/stages/chunk_source_splitter.h"
#include "workers/stages/chunk_unpacker.h"
#include "workers/stages/chunk_validator.h"
#include "workers/stages/epoch_planner.h"
#include "workers/stages/file_path_provider.h"
#include "workers/stages/join_positions.h"
#include "workers/stages/parquet_source.h"
#include "workers/stages/sample_mixer.h"
#include "workers/stages/sequence_batcher.h"
#include "workers/stages/shuffling_chunk_pool.h"
#include "workers/stages/shuffling_frame_sampler.h"
#include "workers/stages/simple_chunk_extractor.h"
#include "workers/stages/tensor_generator.h"

namespace ringfeed {

void register_all_stages(Registry& registry, formats::OpenRowFile open_parquet) {
  registry.add(file_path_provider_type());
  registry.add(chunk_source_loader_type());
  registry.add(shuffling_chunk_pool_type());
  registry.add(chunk_unpacker_type());
  registry.add(chunk_validator_type());
  registry.add(chunk_rescorer_type());
  registry.add(shuffling_frame_sampler_type());
  registry.add(tensor_generator_type());
  registry.add(chunk_source_splitter_type());
  registry.add(simple_chunk_extractor_type());
  registry.add(join_positions_type());
  registry.add(chess_games_type());
  registry.add(chess_variations_type());
  registry.add(sample_mixer_type());
  registry.add(sequence_batcher_type());
  registry.add(bitext_source_type());
  registry.add(epoch_planner_type());
  registry.add(bitext_collator_type());
  registry.add(parquet_source_type(std::move(open_parquet)));
}

}  // namespace ringfeed

#include "workers/programs/all.h"

#include <utility>

#include "workers/bitext/bitext_collator.h"
#include "workers/bitext/bitext_source.h"
#include "workers/bitext/epoch_planner.h"
#include "workers/chess/chess_games.h"
#include "workers/chess/chess_variations.h"
#include "workers/chess/sample_mixer.h"
#include "workers/chess/sequence_batcher.h"
#include "workers/files/file_path_provider.h"
#include "workers/lc0/chunk_rescorer.h"
#include "workers/lc0/chunk_source_loader.h"
#include "workers/lc0/chunk_source_splitter.h"
#include "workers/lc0/chunk_unpacker.h"
#include "workers/lc0/chunk_validator.h"
#include "workers/lc0/join_positions.h"
#include "workers/lc0/shuffling_chunk_pool.h"
#include "workers/lc0/shuffling_frame_sampler.h"
#include "workers/lc0/simple_chunk_extractor.h"
#include "workers/lc0/tensor_generator.h"
#include "workers/rows/parquet_source.h"

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

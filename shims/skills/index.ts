import { defineShim } from 'shimline/shims';
import { skillsConfig } from './config.js';
import { SkillsShim } from './skills.js';

export default defineShim({
  name: 'skills',
  version: 1,
  description: 'Gives the model skills: folders of instructions that it reads when a task needs them.',
  config: skillsConfig,
  create: (config, { name }) => new SkillsShim(config, name),
});
